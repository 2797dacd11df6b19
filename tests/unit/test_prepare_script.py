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
{work}
trap 'exit 143' TERM
echo >started
while true; do sleep 0.05; done
"""
SCONTROL = """#!/bin/bash
[ "$1" != show ] || echo "JobState=$STATE"
[ "$1" != requeue ] || echo "$2" >requeued
[ "$1" != requeue ] || kill -TERM "$PPID"  # as SLURM does
"""


class Job:
    """The script as SLURM would run it, in a folder of the project's."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder
        (folder / "slurm").symlink_to(ROOT / "slurm")
        self.add_program("scontrol", SCONTROL)
        self.add_program("srun", SRUN.format(work=settings.pop("work", "")))
        own = {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(folder), "INPUT": "texts/*.txt"}
        slurm = {"SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "node1", "STATE": "RUNNING"}
        self.environment = {**os.environ, **own, **slurm, **settings}

    def add_program(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o755)

    def run(self, *, stop: bool) -> tuple[int, str]:
        """Return exit code and log; with ``stop`` the script gets SIGTERM while srun runs."""
        command = ["bash", "slurm/prepare_data.sh", "--uncased"]
        with subprocess.Popen(
            command, env=self.environment, cwd=self.folder, stderr=subprocess.PIPE, text=True
        ) as process:
            while stop and not (self.folder / "started").exists():
                assert process.poll() is None, process.communicate()
                time.sleep(0.01)
            if stop:
                process.send_signal(signal.SIGTERM)
            shown = process.communicate(timeout=60)[1]
        return process.returncode, shown

    @property
    def was_requeued(self) -> bool:
        return (self.folder / "requeued").exists()


def test_stopped_job_is_requeued_and_keeps_its_exit_code(tmp_path):
    job = Job(tmp_path)
    code, shown = job.run(stop=True)
    assert (code, job.was_requeued) == (143, True), shown
    assert (tmp_path / "requeued").read_text() == "17\n"
    command = "--mpi=pmi2 megabert-data build --output data/prepared --input texts/*.txt --uncased --mpi"
    assert (tmp_path / "asked").read_text().strip().endswith(command)


def test_signal_between_two_commands_starts_no_further_one():
    shell = (
        "source slurm/lib.sh; pid='' pending=''; trap 'forward TERM' TERM; kill -TERM $$; step sleep 600; exit $code"
    )
    done = subprocess.run(["bash", "-c", shell], cwd=ROOT, timeout=60, check=False)
    assert done.returncode == 75


def test_cancelled_job_stays_away(tmp_path):
    job = Job(tmp_path, STATE="COMPLETING")
    code, shown = job.run(stop=True)
    assert (code, job.was_requeued) == (143, False)
    assert "not requeued here" in shown


@pytest.mark.parametrize("code", [0, 3])
def test_job_that_ends_by_itself_is_not_requeued(tmp_path, code):
    job = Job(tmp_path, work=f"exit {code}")
    assert job.run(stop=False)[0] == code
    assert not job.was_requeued


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"CONTAINER": "pyxis"}, "needs IMAGE"), ({"CONTAINER": "docker"}, "allowed are"), ({"INPUT": ""}, "CONFIG")],
)
def test_setting_that_is_missing_is_named(tmp_path, settings, message):
    job = Job(tmp_path, **settings)
    code, shown = job.run(stop=False)
    assert code == 2
    assert message in shown
    assert not (tmp_path / "asked").exists()
