"""kill -9, then the same command: the losses of an unbroken run, bit for bit."""

import itertools
import os
import signal

import pytest
from integration.runs import Run, kill_everything, ranks_of

MOMENTS = {"before the first checkpoint": 0, "in phase 1": 5, "in phase 2": 10}
VICTIMS = ("launcher", "one rank", "everything")


def run_killed(run: Run, moment: str, victim: str) -> None:
    """Start, kill -9 the victim at the moment, wait until nothing of it lives."""
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


def check_kill(unbroken_pair: Run, run: Run, moment: str, victim: str) -> None:
    run_killed(run, moment, victim)
    assert len(run.losses()) < 13, "it ended before it was killed"
    run.finish_well()
    assert run.losses() == unbroken_pair.losses()
    assert [row for row in run.rows() if "eval/loss" in row] == [
        row for row in unbroken_pair.rows() if "eval/loss" in row
    ]


@pytest.mark.parametrize(
    ("moment", "victim"),
    [("before the first checkpoint", "one rank"), ("in phase 2", "launcher")],  # the next test kills everything
)
def test_killed_run_goes_on_bit_for_bit(unbroken_pair, shards, tmp_path, moment, victim):
    check_kill(unbroken_pair, Run(tmp_path / "run", shards, ranks=2, launcher="deepspeed"), moment, victim)


def check_move(unbroken_pair: Run, run_dir, shards, ranks: int, engine: str) -> float:
    """Kill a run of two ranks under ZeRO-1, go on elsewhere, return the largest relative difference of a loss."""
    run_killed(Run(run_dir, shards, ranks=2), "in phase 1", "everything")
    moved = Run(run_dir, shards, ranks=ranks, flags={"engine": engine})
    moved.finish_well()
    assert f"changed since the last start: ZeRO stage: 1 -> {engine[-1]}" in moved.output or engine == "zero1"
    expected = unbroken_pair.losses()
    assert moved.losses().keys() == expected.keys()
    return max(abs(loss / expected[step] - 1) for step, loss in moved.losses().items())


def test_killed_run_goes_on_with_other_ranks_and_stage(unbroken_pair, shards, tmp_path):
    assert check_move(unbroken_pair, tmp_path / "run", shards, ranks=1, engine="zero3") < 1e-6


@pytest.mark.soak
@pytest.mark.parametrize("engine", ["zero0", "zero1", "zero2", "zero3"])
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_kill_and_move_to_every_stage(unbroken_pair, shards, tmp_path, ranks, engine):
    difference = check_move(unbroken_pair, tmp_path / "run", shards, ranks, engine)
    print(f"\n2 ranks, zero1 -> {ranks} ranks, {engine}: largest relative difference {difference:.1e}")
    assert difference < 1e-6


@pytest.mark.soak
@pytest.mark.parametrize("launcher", ["deepspeed", "torchrun"])
@pytest.mark.parametrize(("moment", "victim"), itertools.product(MOMENTS, VICTIMS))
def test_every_kill_goes_on_bit_for_bit(unbroken_pair, shards, tmp_path, moment, victim, launcher):
    check_kill(unbroken_pair, Run(tmp_path / "run", shards, ranks=2, launcher=launcher), moment, victim)
