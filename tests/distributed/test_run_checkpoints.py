"""When a run writes checkpoints, and which ones it keeps."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from stand_ins import ALONE, StandInEngine

from megabert.checkpoints import background_writer as checkpoint_writer
from megabert.checkpoints.format import steps_in
from megabert.checkpoints.loading import find_checkpoint
from megabert.config.recipes import load_run_config
from megabert.errors import CheckpointError
from megabert.training.run.checkpoint_schedule import RunCheckpoints
from megabert.training.run.folder import checkpoints_dir
from megabert.training.state import TrainerState


@pytest.fixture
def checkpoints(tmp_path):
    return RunCheckpoints(
        load_run_config("debug", flags={"phases": {"0": {"steps": 20}}, "checkpoint": {"keep_last": 1}}),
        engine=StandInEngine(),
        world=ALONE,
        run_dir=tmp_path,
        control=SimpleNamespace(
            status=SimpleNamespace(running=lambda **place: None), watchdog=SimpleNamespace(expect=lambda doing: None)
        ),
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


def test_end_of_a_phase_is_kept_for_those_who_begin_the_next_one_again(checkpoints, tmp_path):
    phases = [(10, 0, 10), (20, 0, 20), (30, 1, 10), (40, 1, 20)]
    for step, phase, phase_step in phases:
        checkpoints.save(replace(TrainerState(), step=step, phase=phase, phase_step=phase_step))
        checkpoints.wait()
    assert steps_in(checkpoints_dir(tmp_path)) == [40, 20]
