from dataclasses import replace
from types import SimpleNamespace

import pytest
from stand_ins import ALONE, StandInEngine

from megabert.config.run import CheckpointConfig
from megabert.distributed import checkpoint_writer
from megabert.distributed.checkpoint_format import steps_in
from megabert.distributed.checkpoints import find_checkpoint
from megabert.errors import CheckpointError
from megabert.training.run_folder import checkpoints_dir
from megabert.training.saving import RunCheckpoints
from megabert.training.state import TrainerState


@pytest.fixture
def checkpoints(tmp_path):
    return RunCheckpoints(
        CheckpointConfig(keep_last=1),
        engine=StandInEngine(),
        world=ALONE,
        run_dir=tmp_path,
        status=SimpleNamespace(running=lambda **place: None),
        watchdog=SimpleNamespace(expect=lambda doing: None),
        state=TrainerState(),
    )


def at(step: int, best_step: int, best_loss: float) -> TrainerState:
    return replace(TrainerState(), step=step, best_step=best_step, best_loss=best_loss)


def refuse(*_):
    raise CheckpointError("full")


def test_best_that_could_not_be_written_leaves_the_one_before(checkpoints, tmp_path, monkeypatch):
    checkpoints.save(at(10, 10, 2.0))
    checkpoints.wait()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_writer, "write_snapshot", refuse)
        checkpoints.save(at(20, 20, 1.0))
        checkpoints.wait()
    state = checkpoints.settle(at(30, 20, 1.0))
    assert (state.step, state.best_step, state.best_loss) == (30, 10, 2.0)
    assert steps_in(checkpoints_dir(tmp_path)) == [30, 10]
    assert find_checkpoint(checkpoints_dir(tmp_path), "best").name == "step_00000010"


def test_end_that_cannot_be_written_is_an_error(checkpoints, monkeypatch):
    monkeypatch.setattr(checkpoint_writer, "write_snapshot", refuse)
    with pytest.raises(CheckpointError, match="full"):
        checkpoints.settle(at(10, 10, 2.0))
