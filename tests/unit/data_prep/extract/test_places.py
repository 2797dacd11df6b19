"""Disks that are lost, nodes that see other files, and clocks that jump, in the middle of a build."""

import errno
import os
import shutil

import pytest
from unit.data_prep.builds import hashes
from unit.data_prep.conftest import begun_build

from data_prep.execution import work_units
from data_prep.execution.executors import Executor
from data_prep.execution.work_units import run_unit
from data_prep.pipeline import build_shards
from megabert.foundation.errors import DataError, HaltedError

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
