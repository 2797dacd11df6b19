"""The lock of a run folder: a second writer, stale locks, orphaned ranks."""

import errno
import logging
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from several_ranks.worker_group import WorkerGroup

from megabert.distributed.run_lock import RunLock
from megabert.foundation.errors import CheckpointError, DataError

ALONE = SimpleNamespace(rank=0, size=1, is_main=True, gather=lambda value: [value])
HELD: list[RunLock] = []


def test_second_writer_is_refused_by_name(tmp_path):
    with RunLock(tmp_path / "run", ALONE), pytest.raises(CheckpointError, match=rf"pid {os.getpid()}.*another folder"):
        RunLock(tmp_path / "run", ALONE).__enter__()


def test_lock_that_was_let_go_is_taken_in_silence(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with RunLock(tmp_path, ALONE):
                pass
    assert caplog.text == ""


def test_model_that_a_killed_fine_tuning_was_writing_is_removed(tmp_path):
    new = tmp_path / "seed_1" / ".model.0a1b2c3d.tmp" / "new"
    new.mkdir(parents=True)
    (tmp_path / ".v.parquet.0a1b2c3d.tmp").touch()  # another command's, which takes no lock
    with RunLock(tmp_path, ALONE):
        assert sorted(path.name for path in tmp_path.rglob(".*.tmp")) == [".v.parquet.0a1b2c3d.tmp"]


def test_link_in_the_place_of_the_logs_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "logs").symlink_to(tmp_path)
    with pytest.raises(DataError, match="logs: is a link"):
        RunLock(tmp_path / "run", ALONE).__enter__()


def test_unwritable_folder_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written"):
        RunLock(tmp_path / "file" / "run", ALONE).__enter__()


def test_full_disk_does_not_hide_the_error_that_ended_the_run(tmp_path, monkeypatch):
    def no_space(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    def run():
        with RunLock(tmp_path, ALONE) as lock:
            monkeypatch.setattr(lock, "_write", no_space)
            raise KeyError("the reason")

    with pytest.raises(KeyError):
        run()
    with RunLock(tmp_path, ALONE):
        pass


def test_orphan_rank_still_refuses_a_second_writer_and_then_the_lock_is_stale(tmp_path, caplog):
    group = WorkerGroup(2)
    try:
        main, orphan = group.run(hold, tmp_path)
        os.kill(main, signal.SIGKILL)
        group.processes[0].join(10)
        with pytest.raises(CheckpointError, match=rf"pid {main}.*alive here: pids {orphan}\."):
            RunLock(tmp_path, ALONE).__enter__()
        os.kill(orphan, signal.SIGKILL)
        group.processes[1].join(10)
        with caplog.at_level(logging.WARNING), RunLock(tmp_path, ALONE):
            pass
        assert "taking over the stale lock" in caplog.text
        assert f"pid {main}" in caplog.text
    finally:
        group.close()


def hold(world, folder: Path) -> int:
    lock = RunLock(folder, world)
    lock.__enter__()
    HELD.append(lock)
    return os.getpid()


def refuse(folder: Path, written: str | None = None) -> None:
    """Start in a folder and end with an error, perhaps after a first file was written."""
    with RunLock(folder, ALONE):
        assert (folder / ".lock").exists()
        if written:
            (folder / written).touch()
        raise DataError("the shards are damaged")


@pytest.mark.parametrize("others", [(), ("notes.txt",)])
def test_refused_start_leaves_nothing_and_one_that_wrote_its_lock(tmp_path, others):
    for name in others:
        (tmp_path / name).touch()
    folder = tmp_path if others else tmp_path / "new"
    with pytest.raises(DataError):
        refuse(folder)
    assert sorted(os.listdir(tmp_path)) == sorted(others)
    with pytest.raises(DataError):
        refuse(folder, written="config.yaml")
    assert (folder / ".lock").exists()


def test_lock_file_that_was_removed_meanwhile_is_not_taken(tmp_path, monkeypatch):
    def lock(file, mode):
        (tmp_path / ".lock").unlink()  # by a start that was refused
        return True

    monkeypatch.setattr("megabert.distributed.run_lock.try_lock", lock)
    with pytest.raises(CheckpointError, match="another run holds"):
        RunLock(tmp_path, ALONE).__enter__()
