"""kill -9, then the same command: in the end the run has the losses of an uninterrupted run, bit for bit.

``make soak`` has all launchers, moments and victims. In ``make test`` two ranks are killed by ``test_extension.py``,
one by ``test_running_families.py``, and SLURM ends a job.
"""

import itertools
import os
import signal

import pytest
from support.runs import Run, assert_equal_runs, finished, kill_everything, ranks_of

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


def resume_elsewhere(uninterrupted_run: Run, run_dir, shards, ranks: int, engine: str) -> float:
    """Kill a run of two ranks under ZeRO-1 and resume it with other ranks under another stage.

    Sums in another order differ in their last bits, so that the two complete runs are compared with a tolerance.

    Returns:
        Largest relative difference of a loss.
    """
    start_and_kill(Run(run_dir, shards, ranks=2, launcher="torchrun"), "in phase 1", "everything")
    moved = finished(run_dir, shards, ranks=ranks, flags={"engine": engine})
    assert f"changed since the last start: ZeRO stage: 1 -> {engine[-1]}" in moved.output or engine == "zero1"
    expected = uninterrupted_run.losses()
    assert moved.losses().keys() == expected.keys()
    return max(abs(loss / expected[step] - 1) for step, loss in moved.losses().items())


@pytest.mark.soak
@pytest.mark.parametrize("engine", ["zero0", "zero1", "zero2", "zero3"])
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_kill_and_move_to_every_stage(uninterrupted_run, shards, tmp_path, ranks, engine):
    difference = resume_elsewhere(uninterrupted_run, tmp_path / "run", shards, ranks, engine)
    print(f"\n2 ranks, zero1 -> {ranks} ranks, {engine}: largest relative difference {difference:.1e}")
    assert difference < 1e-6


@pytest.mark.soak
@pytest.mark.parametrize("launcher", ["deepspeed", "torchrun"])
@pytest.mark.parametrize(("moment", "victim"), itertools.product(MOMENTS, VICTIMS))
def test_every_kill_resumes_bit_for_bit(uninterrupted_run, shards, tmp_path, moment, victim, launcher):
    run = Run(tmp_path / "run", shards, ranks=2, launcher=launcher)
    check_killed_run_equals(uninterrupted_run, run, moment, victim)
