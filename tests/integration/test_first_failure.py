"""One rank fails alone: its error is the one on the screen, its code the run's, and the others add nothing."""

import json

import pytest
from support.runs import Run
from support.soak import in_soak

from megabert.checkpoints.format import steps_in

LABELS = {0: "megabert: DataError: a torn shard", 1: "[rank 1] megabert: DataError: a torn shard"}


def check_failure(run: Run, rank: int) -> None:
    # torchrun has one code for everything; status.json has the rank's.
    assert run.finish() == (1 if run.launcher == "torchrun" else 3), run.output[-4000:]
    errors = [line for line in run.output.splitlines() if "Error: " in line and "ChildFailedError" not in line]
    assert errors == [LABELS[rank]], run.output[-6000:]
    assert "gloo" not in run.output
    status = json.loads((run.run_dir / "status.json").read_text())
    assert (status["status"], status["exit_code"], status["rank"]) == ("failed", 3, rank)
    assert status["error"] == "DataError: a torn shard"


@pytest.mark.parametrize("rank", [0, *in_soak(1)])
def test_failure_is_told_before_a_slow_checkpoint_is_waited_for(shards, tmp_path, monkeypatch, rank):
    # One step takes 5 s at most, and the writer 7 s: a rank that was not told would be recorded as hanging.
    monkeypatch.setenv("FAILING_RANK", str(rank))
    flags = {"watchdog.min_step_s": 5, "watchdog.other_s": 600}
    run = Run(tmp_path / "run", shards, ranks=2, flags=flags, fault="tear_a_shard+write_slowly")
    check_failure(run, rank)
    # The checkpoint that was being written is complete: every rank waited for its own writer.
    assert steps_in(run.run_dir / "checkpoints") == [3, 0]


@pytest.mark.soak
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("launcher", ["deepspeed", "torchrun"])
@pytest.mark.parametrize("rank", [0, 1])
def test_first_failure_of_every_rank_and_launcher(shards, tmp_path, monkeypatch, launcher, rank, ranks):
    monkeypatch.setenv("FAILING_RANK", str(rank))
    run = Run(tmp_path / "run", shards, ranks=ranks, launcher=launcher, fault="tear_a_shard")
    check_failure(run, rank)
