"""``slurm/prepare_data.sh`` on a real SLURM: MPI ranks on two nodes make the bytes of one process."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from forked.client import run_command
from integration.slurm.clusters import ROOT, virtualenv
from support.bundled_corpus import small_corpus

from megabert.tokens.shards.folder import read_manifest

MPIRUN = Path(sys.executable).parent / "mpirun"
FLAGS = ["--vocab-size", "1000", "--lengths", "64", "--dupe-factor", "2", "--validation-share", "0.1"]
END_S = 240
# On a busy machine the pmi2 plugin of SLURM 22 takes a request of MPICH in two pieces for two; the ranks then
# wait for ever. The job is submitted again, as its user would.
GARBLED = "mpi/pmi2: invalid client request"
ATTEMPTS = 6


def ask(environment: dict[str, str], *command: str) -> str:
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_job(environment: dict[str, str], log: Path) -> str:
    """Submit, wait, and return the state of the end, or of a start that SLURM's PMI plugin garbled."""
    options = ["--nodes=2", "--ntasks-per-node=2", "--mem-per-cpu=0", "--time=10", f"--output={log}"]
    number = ask(environment, "sbatch", "--parsable", *options, "slurm/prepare_data.sh").strip()
    deadline = time.monotonic() + END_S
    while time.monotonic() < deadline:
        state = ask(environment, "scontrol", "show", "job", number).split("JobState=")[1].split()[0]
        if state not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"):
            return state
        if log.exists() and GARBLED in log.read_text():
            ask(environment, "scancel", number)
            return GARBLED
        time.sleep(0.2)
    raise AssertionError(f"not in {END_S} s:\n{log.read_text()[-4000:] if log.exists() else 'no output'}")


@pytest.mark.soak
@pytest.mark.skipif(not MPIRUN.is_file(), reason="no MPI next to Python: pip install 'megabert[mpi]'")
def test_ranks_on_two_nodes_make_the_bytes_of_one_process(cluster, tmp_path):
    corpus = small_corpus(tmp_path)
    alone, together = tmp_path / "alone", tmp_path / "together"
    words = ["build", "--input", str(corpus), "--output", str(alone), *FLAGS, "--workers", "1"]
    assert run_command("data_prep", words, tmp_path / "alone.out") == 0, (tmp_path / "alone.out").read_text()
    own = {"INPUT": str(corpus), "OUTPUT": str(together), "DATA_FLAGS": " ".join(FLAGS)}
    environment = {**cluster, **own, "VENV": str(virtualenv(tmp_path))}
    for attempt in range(ATTEMPTS):
        log = tmp_path / f"job-{attempt}.log"
        state = run_job(environment, log)
        if state != GARBLED:
            break
    assert state == "COMPLETED", log.read_text()[-4000:]
    folders = [folder / "instances" / "64" for folder in (alone, together)]
    assert read_manifest(folders[0]).data_sha256 == read_manifest(folders[1]).data_sha256
    assert log.read_text().count("shards ") == 1  # the summary, of rank 0 alone
