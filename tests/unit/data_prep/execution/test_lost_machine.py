"""Builds whose workers die, whose disk is full or lost, on nodes that see other files, and with clocks that jump."""

import errno
import itertools
import os
import resource
import shutil
import subprocess
import time
from unittest import mock

import pyarrow as pa
import pytest
from unit.data_prep.builds import hashes
from unit.data_prep.conftest import FLAGS, SENTENCES, begun_build, files_of

from data_prep.documents.arrow_files import write_batches
from data_prep.execution import work_units
from data_prep.execution.executors import Executor, ProcessExecutor
from data_prep.execution.work_units import run_unit
from data_prep.pipeline import build_shards
from megabert.foundation.errors import DataError, HaltedError


def die(task):
    os.kill(os.getpid(), 9)


def die_at_three(task):
    if task == "file three":
        die(task)
    time.sleep(0.2)


def test_dead_worker_is_reported_with_its_task():
    tasks = ["file one", "file two", "file three", "file four"]
    with (
        pytest.raises(
            HaltedError, match=r"died at file three \(killed; out of memory\?\)\. .*run the same command again"
        ),
        ProcessExecutor(2) as executor,
    ):
        list(executor.run(die_at_three, tasks))


@pytest.mark.parametrize("small_disk", ["300k"], indirect=True)
def test_full_disk_keeps_finished_units_and_a_second_run_completes(small_disk, corpus, megabert_data):
    arguments = ["build", "--input", str(corpus), "--output", str(small_disk / "out"), *FLAGS]
    assert "the build will take" in megabert_data(*arguments, code=3).err
    arguments.append("--ignore-disk-space")
    message = megabert_data(*arguments, code=3).err
    assert "no space left" in message
    assert "MiB free" in message
    assert str(small_disk) in message
    finished = [name for name in files_of(small_disk) if "records" in name]
    assert finished
    assert not [name for name in files_of(small_disk) if name.endswith(".tmp")]
    subprocess.run(["mount", "-o", "remount,size=60m", str(small_disk)], check=True)
    assert "done before" in megabert_data(*arguments).err
    megabert_data("verify", small_disk / "out", "--workers", "1")


def test_full_disk_error_names_the_folder(small_build, tmp_path, monkeypatch):
    """The same without a mount: the fourth write finds no space."""
    from megabert.foundation import files

    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(
        files, "sync_file", mock.Mock(side_effect=itertools.chain([None] * 3, [full], itertools.repeat(None)))
    )
    assert "no space left" in small_build(texts=[SENTENCES] * 9, code=3).err
    assert not list(tmp_path.rglob("*.tmp"))
    # The corpus was not refused, so the text that was read is not deleted for another one.
    monkeypatch.undo()
    assert "was begun with other input" in small_build(texts=[SENTENCES] * 8, code=3).err
    assert list((tmp_path / "out" / "work" / "extract").iterdir())


def test_write_that_fails_names_the_file(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(DataError, match=r"a\.arrow: would be larger than the limit .*, 0 bytes .ulimit -f"):
            write_batches(tmp_path / "a.arrow", pa.schema([("ids", pa.int64())]), [])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


YEAR_NS = 365 * 24 * 3600 * 10**9


class Losing(Executor):
    """Loses something after some tasks."""

    def __init__(self, tasks, lose):
        self.left, self.lose = tasks, lose

    def run(self, function, tasks):
        for index, task in enumerate(tasks):
            self.left -= 1
            if self.left == 0:
                self.lose()
            yield index, function(task)


@pytest.mark.parametrize("lost", ["work", ""])
@pytest.mark.parametrize("tasks", [4, 9])
def test_folder_that_is_lost_ends_the_build_and_the_next_has_the_same_bytes(built, make_config, tmp_path, lost, tasks):
    output = tmp_path / "out"
    with pytest.raises(DataError, match="the same") as error:
        build_shards(make_config(), output, Losing(tasks, lambda: shutil.rmtree(output / lost)))
    assert str(output) in str(error.value)
    assert not (output / "instances").exists()
    build_shards(make_config(), output, Executor())
    assert hashes(output) == hashes(built.folder)


def unit_of(build, function):
    return build.unit("tokens", "000000-000", function, None)


def changed(_):
    raise DataError("a.jsonl: changed while the build read it (5 bytes before, 7 now).")


def broken(_):
    raise OSError(errno.EIO, os.strerror(errno.EIO), "tokens/a.arrow")


@pytest.mark.parametrize(
    ("function", "kind", "words"),
    [(changed, DataError, "a.jsonl: changed"), (broken, HaltedError, "tokens/a.arrow: Input")],
)
def test_node_that_fails_is_named(make_config, own_copy, monkeypatch, function, kind, words):
    unit = unit_of(begun_build(own_copy, make_config(), host="first"), function)
    monkeypatch.setattr(work_units.socket, "gethostname", lambda: "second")
    with pytest.raises(DataError, match=f"{words}.* on the node second, and first hands the units out") as raised:
        run_unit(unit)
    assert raised.type is kind


def test_node_that_does_not_see_the_output_writes_nothing(make_config, tmp_path, monkeypatch):
    unit = unit_of(begun_build(tmp_path / "elsewhere", make_config(), host="first"), changed)
    monkeypatch.setattr(work_units.socket, "gethostname", lambda: "second")
    with pytest.raises(HaltedError, match=r"not mounted here.* on the node second"):
        run_unit(unit)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("years", [-60, 30])
def test_clock_that_jumps_changes_nothing(built, own_copy, make_config, capsys, years):
    """Files that seem to be of another time are hashed, and are what they were."""
    before = hashes(own_copy)
    for path in [*own_copy.rglob("*.arrow"), *own_copy.rglob("*.jsonl")]:
        then = path.stat().st_mtime_ns + years * YEAR_NS
        os.utime(path, ns=(then, then))
    build_shards(make_config(), own_copy, Executor())
    assert hashes(own_copy) == before
    assert "done before" in capsys.readouterr().err
