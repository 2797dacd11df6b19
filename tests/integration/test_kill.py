"""kill -9, then the same command: in the end the run has the losses of an uninterrupted run, bit for bit.

``make soak`` has all launchers, moments and victims. In ``make test`` two ranks are killed by ``test_extension.py``,
one by ``test_running_families.py``, and SLURM ends a job.
"""

import itertools
import os
import signal

import pytest
from support.runs import Run, assert_equal_runs, kill_everything, ranks_of

MOMENTS = {"before the first checkpoint": 0, "in phase 1": 5, "in phase 2": 10}
VICTIMS = ("launcher", "one rank", "everything")


def start_and_kill(run: Run, moment: str, victim: str) -> None:
    """Start a run, kill -9 the victim at the moment, and wait until nothing of the run lives.

    Where the victim is one rank or the launcher, the rest has to end by itself: a rank that outlived the others would
    still hold the lock of the run folder.
    """
    process = run.start()
    try:
        run.wait_for_step(MOMENTS[moment], process)
        ranks = ranks_of(process)
        if victim == "launcher":
            os.kill(process.pid, signal.SIGKILL)
        elif victim == "one rank":
            ranks[-1].kill()
        else:
            kill_everything(process)
        process.wait(60)
        for rank in ranks:
            rank.wait(60)
    finally:
        kill_everything(process)


def check_killed_run_equals(uninterrupted_run: Run, run: Run, moment: str, victim: str) -> None:
    """Kill a run, start it again by the same command, and compare two complete runs."""
    start_and_kill(run, moment, victim)
    assert len(run.losses()) < 13, "it ended before it was killed"
    run.finish_well()
    assert_equal_runs(run, uninterrupted_run)


@pytest.mark.soak
def test_killed_run_in_8_bits_resumes_bit_for_bit(shards, tmp_path):
    flags = {"precision": "fp8"}
    whole, run = (Run(tmp_path / name, shards, ranks=2, launcher="torchrun", flags=flags) for name in ("whole", "run"))
    whole.finish_well()
    check_killed_run_equals(whole, run, "in phase 2", "everything")


@pytest.mark.soak
@pytest.mark.parametrize("launcher", ["deepspeed", "torchrun"])
@pytest.mark.parametrize(("moment", "victim"), itertools.product(MOMENTS, VICTIMS))
def test_every_kill_resumes_bit_for_bit(uninterrupted_run, shards, tmp_path, moment, victim, launcher):
    run = Run(tmp_path / "run", shards, ranks=2, launcher=launcher)
    check_killed_run_equals(uninterrupted_run, run, moment, victim)
