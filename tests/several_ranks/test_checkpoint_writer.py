"""A run's checkpoints: what training waits for, what it learns of a failure, and which ones are kept."""

import logging
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from several_ranks.stand_ins import ALONE, StandInEngine
from several_ranks.toy_training import make_engine

from megabert.checkpoints.format import steps_in
from megabert.checkpoints.loading import find_checkpoint, read_masters
from megabert.foundation.errors import CheckpointError
from megabert.settings.config.loading import load_run_config
from megabert.training.run import checkpoint_writer
from megabert.training.run.checkpoint_writer import CheckpointWriter
from megabert.training.run.folder import checkpoints_dir
from megabert.training.state import TrainerState


@pytest.fixture
def engine():
    return StandInEngine()


@pytest.fixture
def written():
    return []


@pytest.fixture
def folder(tmp_path):
    return checkpoints_dir(tmp_path)


@pytest.fixture
def keep_last():
    return 3


def make_writer(run_dir, engine, world=ALONE, *, keep_last=3, running=lambda step, phase: None):
    flags = {"phases": {"0": {"steps": 20}}, "checkpoint": {"keep_last": keep_last}}
    return CheckpointWriter(
        load_run_config("debug", flags=flags),
        engine=engine,
        world=world,
        run_dir=run_dir,
        status=SimpleNamespace(running=running),
        watchdog=SimpleNamespace(expect=lambda doing: None),
        state=TrainerState(),
    )


@pytest.fixture
def writer(tmp_path, engine, written, keep_last):
    return make_writer(tmp_path, engine, keep_last=keep_last, running=lambda step, phase: written.append(step))


def refuse(*_):
    raise CheckpointError("full")


@pytest.fixture
def disk(monkeypatch):
    """An event: nothing is written before it is set."""
    may_write = threading.Event()
    original = checkpoint_writer.write_snapshot

    def write(*arguments):
        assert may_write.wait(30)
        return original(*arguments)

    monkeypatch.setattr(checkpoint_writer, "write_snapshot", write)
    yield may_write
    may_write.set()


def test_training_may_go_on_while_a_checkpoint_is_written(folder, engine, writer, written, disk):
    expected = engine.flat[3:].clone()
    writer.save(TrainerState(step=5))
    engine.flat += 1
    for moments in engine.moments:
        moments.zero_()
    assert written == []
    disk.set()
    assert writer.wait() is None
    assert written == [5]
    assert torch.equal(read_masters(find_checkpoint(folder, 5))["weight"].view(-1), expected)


def test_writer_may_be_closed_just_before_a_write_begins(writer, written, monkeypatch):
    # The thread that ends a rank after another one's failure closes the writer at any moment of the main thread.
    start = threading.Thread.start

    def close_and_start(thread):
        writer.close()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", close_and_start)
    writer.save(TrainerState(step=5))
    assert writer.wait() is None
    assert written == [5]


def test_a_save_waits_for_the_one_before_and_counts_it(folder, writer, disk, caplog):
    writer.save(TrainerState(step=5))
    threading.Timer(0.1, disk.set).start()
    with caplog.at_level(logging.WARNING):
        writer.save(TrainerState(step=6))
    assert writer.waits == 1
    assert "waits for the previous checkpoint" in caplog.text
    writer.wait()
    assert writer.waits == 1
    assert {path.name for path in folder.iterdir()} == {"latest", "step_00000005", "step_00000006"}


def test_buffers_are_allocated_once(writer):
    writer.save(TrainerState(step=5))
    first = writer._buffer.data_ptr()
    writer.save(TrainerState(step=6))
    writer.wait()
    assert writer._buffer.data_ptr() == first


def test_checkpoint_that_cannot_be_written_is_reported_and_the_next_tried(folder, writer, written, monkeypatch, caplog):
    writer.save(TrainerState(step=5))
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(checkpoint_writer, "write_snapshot", refuse)
        writer.wait()
        writer.save(TrainerState(step=6))
        assert str(writer.wait()) == "full"
    assert "CHECKPOINT NOT WRITTEN, the last good one stays: full" in caplog.text
    assert writer.failures == 1
    assert find_checkpoint(folder).name == "step_00000005"
    writer.save(TrainerState(step=7))
    assert writer.wait() is None
    assert written == [5, 7]


def test_first_checkpoint_that_cannot_be_written_leaves_none_before_it(writer, monkeypatch, caplog):
    monkeypatch.setattr(checkpoint_writer, "write_snapshot", refuse)
    with caplog.at_level(logging.WARNING):
        writer.save(TrainerState(step=0))
        writer.wait()
    assert "CHECKPOINT NOT WRITTEN, and there is no earlier one: full" in caplog.text


def test_death_of_another_rank_is_raised_where_training_waits(writer, monkeypatch):
    def lost(*_):
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(checkpoint_writer, "write_snapshot", lost)
    writer.save(TrainerState(step=5))
    writer.close()
    with pytest.raises(RuntimeError, match="closed by peer"):
        writer.save(TrainerState(step=6))


def at(step: int, best_step: int, best_loss: float) -> TrainerState:
    return replace(TrainerState(), step=step, best_step=best_step, best_loss=best_loss)


@pytest.mark.parametrize("keep_last", [1])
@pytest.mark.parametrize(("step", "best", "loss"), [(30, 10, 2.0), (20, 20, 1.0)])
def test_best_that_could_not_be_written_leaves_the_one_before_unless_it_is_tried_again(
    step, best, loss, writer, folder, monkeypatch
):
    writer.save(at(10, 10, 2.0))
    writer.wait()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_writer, "write_snapshot", refuse)
        writer.save(at(20, 20, 1.0))
        writer.wait()
    assert writer.settle(at(step, 20, 1.0)) == at(step, best, loss)
    assert steps_in(folder) == sorted({step, best}, reverse=True)
    assert find_checkpoint(folder, "best").name == f"step_{best:08}"


def test_end_that_cannot_be_written_is_an_error(writer, monkeypatch):
    monkeypatch.setattr(checkpoint_writer, "write_snapshot", refuse)
    with pytest.raises(CheckpointError, match="full"):
        writer.settle(at(10, 10, 2.0))


@pytest.mark.parametrize("keep_last", [1])
def test_end_of_a_phase_is_kept_for_those_who_begin_the_next_one_again(writer, folder):
    phases = [(10, 0, 10), (20, 0, 20), (30, 1, 10), (40, 1, 20)]
    for step, phase, phase_step in phases:
        writer.save(replace(TrainerState(), step=step, phase=phase, phase_step=phase_step))
        writer.wait()
    assert steps_in(folder) == [40, 20]


def write_while_rank_0_deletes_slowly(world, run_dir):
    def prune(*_, **__):
        time.sleep(0.3)
        world.store.set("deleted", "yes")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_writer, "prune", prune)
        writer = make_writer(run_dir, make_engine(world, "zero1"), world)
        writer.save(TrainerState(step=5))
        assert writer.wait() is None
    return world.store.check(["deleted"])


def test_a_checkpoint_is_done_on_every_rank_when_rank_0_has_deleted_the_old_ones(workers, tmp_path):
    assert workers(2).run(write_while_rank_0_deletes_slowly, tmp_path) == [True, True]
