"""The thread that writes checkpoints: what training waits for, and what it learns of a failure."""

import logging
import threading

import pytest
import torch
from stand_ins import ALONE, StandInEngine

from megabert.checkpoints import background_writer as checkpoint_writer
from megabert.checkpoints.background_writer import CheckpointWriter
from megabert.checkpoints.loading import find_checkpoint, read_masters
from megabert.errors import CheckpointError


@pytest.fixture
def engine():
    return StandInEngine()


@pytest.fixture
def written():
    return []


@pytest.fixture
def writer(tmp_path, engine, written):
    return CheckpointWriter(tmp_path, engine, ALONE, written=written.append)


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


def test_training_may_go_on_while_a_checkpoint_is_written(tmp_path, engine, writer, written, disk):
    expected = engine.flat[3:].clone()
    writer.save(5, {"step": 5})
    engine.flat += 1
    for moments in engine.moments:
        moments.zero_()
    assert written == []
    disk.set()
    assert writer.wait() is None
    assert written == [{"step": 5}]
    assert torch.equal(read_masters(find_checkpoint(tmp_path, 5))["weight"].view(-1), expected)


def test_a_save_waits_for_the_one_before_and_counts_it(tmp_path, writer, disk, caplog):
    writer.save(5, {"step": 5})
    threading.Timer(0.1, disk.set).start()
    with caplog.at_level(logging.WARNING):
        writer.save(6, {"step": 6})
    assert writer.counts.waits == 1
    assert "waits for the previous checkpoint" in caplog.text
    writer.wait()
    assert writer.counts.waits == 1
    assert {path.name for path in tmp_path.iterdir()} == {"latest", "step_00000005", "step_00000006"}


def test_buffers_are_allocated_once(writer):
    writer.save(5, {})
    first = writer._buffer.data_ptr()
    writer.save(6, {})
    writer.wait()
    assert writer._buffer.data_ptr() == first


def test_checkpoint_that_cannot_be_written_is_reported_and_the_next_is_tried(
    tmp_path, writer, written, monkeypatch, caplog
):
    writer.save(5, {"step": 5})
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(checkpoint_writer, "write_snapshot", lambda *_: (_ for _ in ()).throw(CheckpointError("full")))
        writer.wait()
        writer.save(6, {"step": 6})
        assert str(writer.wait()) == "full"
    assert "CHECKPOINT NOT WRITTEN, the last good one stays: full" in caplog.text
    assert writer.counts.failures == 1
    assert find_checkpoint(tmp_path).name == "step_00000005"
    writer.save(7, {"step": 7})
    assert writer.wait() is None
    assert [state["step"] for state in written] == [5, 7]


def test_death_of_another_rank_is_raised_where_training_waits(writer, monkeypatch):
    def lost(*_):
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(checkpoint_writer, "write_snapshot", lost)
    writer.save(5, {})
    writer.close(10)
    with pytest.raises(RuntimeError, match="closed by peer"):
        writer.save(6, {})
