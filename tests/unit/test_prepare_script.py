"""``slurm/prepare_data.sh`` under signals, with stand-ins for srun and scontrol."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SRUN = """#!/bin/bash
echo "$*" >asked
trap 'exit 143' TERM
echo >started
while true; do sleep 0.05; done
"""
SCONTROL = """#!/bin/bash
[ "$1" != show ] || echo "JobState=$STATE"
[ "$1" != requeue ] || echo "$2" >requeued
[ "$1" != requeue ] || kill -TERM "$PPID"  # as SLURM does
"""


@pytest.mark.parametrize(("state", "is_requeued"), [("RUNNING", True), ("COMPLETING", False)])
def test_stopped_job_keeps_its_exit_code_and_is_requeued_unless_it_was_cancelled(tmp_path, state, is_requeued):
    (tmp_path / "slurm").symlink_to(ROOT / "slurm")
    for name, text in {"scontrol": SCONTROL, "srun": SRUN}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    own = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(tmp_path), "INPUT": "texts/*.txt"}
    slurm = {"SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "node1", "STATE": state}
    surroundings = {"env": {**os.environ, **own, **slurm}, "cwd": tmp_path, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(["bash", "slurm/prepare_data.sh", "--uncased"], **surroundings) as process:
        while not (tmp_path / "started").exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        shown = process.communicate(timeout=60)[1]
    assert (process.returncode, (tmp_path / "requeued").exists()) == (143, is_requeued), shown
    assert ("not requeued here" in shown) is not is_requeued
    if is_requeued:
        assert (tmp_path / "requeued").read_text() == "17\n"
    command = "--mpi=pmi2 megabert-data build --output data/prepared --input texts/*.txt --uncased --mpi"
    assert (tmp_path / "asked").read_text().strip().endswith(command)
