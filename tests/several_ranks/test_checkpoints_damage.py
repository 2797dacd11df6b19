"""Damaged, missing and half-written checkpoints: which one is loaded, which stay, and what is said."""

import errno
import logging
import os
import shutil
from types import SimpleNamespace

import pytest
import torch
from several_ranks.saving import save_checkpoint
from several_ranks.stand_ins import ALONE, StandInEngine

from megabert.checkpoints import saving as checkpoint_saving
from megabert.checkpoints.format import steps_in
from megabert.checkpoints.loading import find_checkpoint, has_checkpoint, load_checkpoint, read_masters
from megabert.checkpoints.saving import forget_after, prune, recover
from megabert.foundation.errors import CheckpointError


@pytest.fixture
def three(tmp_path):
    """A folder with checkpoints of steps 0, 10 and 20; the best is 10."""
    engine = StandInEngine()
    for step in (0, 10, 20):
        engine.flat += 1
        save_checkpoint(tmp_path, step, engine, {"step": step, "best_step": 10 if step else None}, ALONE)
    return tmp_path


def flip_byte(path, position=-5):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(bytes(content))


def test_last_is_the_newest(three):
    assert find_checkpoint(three).name == "step_00000020"
    assert (three / "latest").read_text().strip() == "step_00000020"
    assert find_checkpoint(three, "best").name == "step_00000010"
    assert find_checkpoint(three, "0").name == "step_00000000"
    assert not list(three.glob(".tmp*"))


def test_round_trip_through_memory_is_exact(three):
    engine, saved = StandInEngine(), StandInEngine()
    engine.flat.fill_(-1)
    assert load_checkpoint(find_checkpoint(three), engine, ALONE)["step"] == 20
    assert torch.equal(engine.flat[3:], saved.flat[3:] + 3)
    assert torch.equal(engine.flat[:3], torch.full((3,), -1.0))  # padding is left alone
    assert torch.equal(read_masters(find_checkpoint(three))["weight"].view(-1), engine.flat[3:])


DAMAGE = {
    "rank_00000.safetensors": lambda path: flip_byte(path, -40),
    "manifest.json": lambda path: flip_byte(path, -40),
    "manifest.json: missing": lambda path: path.unlink(),
    "manifest.json: damaged": lambda path: os.truncate(path, 50),
    "rank_00000.safetensors: No such file": lambda path: path.unlink(),
    "rank_00000.safetensors: 100 bytes": lambda path: os.truncate(path, 100),
}


@pytest.mark.parametrize("said", DAMAGE)
def test_damage_is_named_and_the_previous_good_one_used_aloud(three, caplog, said):
    name, _, what = said.partition(": ")
    DAMAGE[said](three / "step_00000020" / name)
    with caplog.at_level(logging.WARNING):
        assert find_checkpoint(three).name == "step_00000010"
    for part in (f"step_00000020/{name}", what, "step_00000010"):
        assert part in caplog.text


def test_no_good_one_is_an_error_and_never_a_fresh_start(three):
    for step in (0, 10, 20):
        flip_byte(three / f"step_{step:08d}" / "rank_00000.safetensors")
    with pytest.raises(CheckpointError, match=r"every checkpoint is damaged.*never starts fresh"):
        find_checkpoint(three)
    assert has_checkpoint(three)


def test_a_recorded_but_vanished_checkpoint_is_an_error(three):
    for folder in three.glob("step_*"):
        shutil.rmtree(folder)
    assert has_checkpoint(three)
    with pytest.raises(CheckpointError, match="no checkpoint"):
        find_checkpoint(three)


def test_damaged_one_asked_for_by_name_is_an_error(three):
    flip_byte(three / "step_00000010" / "rank_00000.safetensors")
    for which in ("best", 10):
        with pytest.raises(CheckpointError, match=r"step_00000010/rank_00000\.safetensors"):
            find_checkpoint(three, which)
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        find_checkpoint(three, 11)


def test_best_without_validation_is_an_error(tmp_path):
    save_checkpoint(tmp_path, 0, StandInEngine(), {"best_step": None}, ALONE)
    with pytest.raises(CheckpointError, match="no validation"):
        find_checkpoint(tmp_path, "best")


def test_another_model_is_refused(three):
    with pytest.raises(CheckpointError, match=r"another model.*weight: \[100, 10\] saved, \[50, 10\] wanted"):
        load_checkpoint(find_checkpoint(three), StandInEngine(500), ALONE)


def test_a_damaged_step_is_replaced_when_it_is_reached_again(three):
    flip_byte(three / "step_00000020" / "rank_00000.safetensors")
    save_checkpoint(three, 20, StandInEngine(), {"step": 20}, ALONE)
    assert find_checkpoint(three).name == "step_00000020"
    assert not list(three.glob(".tmp*"))


def test_a_step_that_cannot_be_replaced_stays(three, monkeypatch):
    rename = type(three).rename

    def fail_once(path, target):
        if path.name == ".tmp_step_00000020":
            raise OSError(errno.EIO, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(type(three), "rename", fail_once)
    with pytest.raises(CheckpointError, match="Input/output error"):
        save_checkpoint(three, 20, StandInEngine(), {"step": 20}, ALONE)
    assert steps_in(three) == [20, 10, 0]
    assert find_checkpoint(three).name == "step_00000020"
    assert not list(three.glob(".tmp*"))


def test_prune_keeps_the_newest_its_best_and_the_protected(three):
    save_checkpoint(three, 30, StandInEngine(), {"best_step": 10}, ALONE)
    (three / ".tmp_step_00000040").mkdir()  # a killed run's
    assert prune(three, 1, protect={0}) == [20]
    kept = ["latest", "step_00000000", "step_00000010", "step_00000030"]
    assert sorted(path.name for path in three.iterdir()) == kept


def test_best_survives_that_the_newest_checkpoint_is_damaged(three):
    save_checkpoint(three, 30, StandInEngine(), {"best_step": 30}, ALONE)
    assert prune(three, 2, protect={30}) == [0]
    flip_byte(three / "step_00000030" / "rank_00000.safetensors")
    assert find_checkpoint(three, "best").name == "step_00000010"


def test_prune_never_deletes_the_last_good_one(tmp_path, caplog):
    for step in (0, 10, 20):
        save_checkpoint(tmp_path, step, StandInEngine(), {"step": step, "best_step": None}, ALONE)
    flip_byte(tmp_path / "step_00000020" / "rank_00000.safetensors")
    with caplog.at_level(logging.WARNING):
        assert prune(tmp_path, 1) == [0]
    assert find_checkpoint(tmp_path).name == "step_00000010"


def test_prune_keeps_the_newest_good_one_beside_an_old_good_one_that_is_protected(three):
    flip_byte(three / "step_00000020" / "rank_00000.safetensors")
    assert prune(three, 1, protect={0}) == []
    assert steps_in(three) == [20, 10, 0]


def test_prune_deletes_nothing_while_no_checkpoint_can_be_read(three, caplog):
    for step in (0, 10, 20):
        flip_byte(three / f"step_000000{step:02d}" / "rank_00000.safetensors")
    with caplog.at_level(logging.WARNING):
        assert prune(three, 1) == []
    assert "none is deleted" in caplog.text


def test_prune_keeps_one_checkpoint_an_interval_for_good(tmp_path):
    for step in (0, 40, 90, 120, 130, 210, 220, 230):
        save_checkpoint(tmp_path, step, StandInEngine(), {}, ALONE)
        prune(tmp_path, 2, keep_every=100)
    assert steps_in(tmp_path) == [230, 220, 210, 120, 0]


def test_newer_checkpoints_are_forgotten(three):
    assert forget_after(three, 0) == [20, 10]
    assert find_checkpoint(three).name == "step_00000000"


def test_checkpoint_that_a_killed_run_was_replacing_gets_its_name_back(three):
    for name in ("step_00000010", "step_00000020"):  # killed between the two renames
        (three / name).rename(three / f".tmp_replaced_{name}")
    save_checkpoint(three / "elsewhere", 10, StandInEngine(), {}, ALONE)
    (three / "elsewhere" / "step_00000010").rename(three / "step_00000010")  # killed after them
    recover(three)
    assert steps_in(three) == [20, 10, 0]
    assert find_checkpoint(three).name == "step_00000020"


TINY_DISK = pytest.mark.parametrize("small_disk", ["256k"], indirect=True)


@TINY_DISK
def test_full_disk_is_seen_before_anything_is_written(small_disk):
    save_checkpoint(small_disk, 0, StandInEngine(), {"step": 0}, ALONE)
    with pytest.raises(CheckpointError, match=r"too full.*MiB are needed.*MiB are free"):
        save_checkpoint(small_disk, 10, StandInEngine(30_000), {"step": 10}, ALONE)
    assert sorted(path.name for path in small_disk.iterdir()) == ["latest", "step_00000000"]


@TINY_DISK
def test_disk_that_fills_while_writing_leaves_nothing_half_written(small_disk, monkeypatch):
    save_checkpoint(small_disk, 0, StandInEngine(), {"step": 0}, ALONE)
    plenty = SimpleNamespace(free=1 << 40)
    monkeypatch.setattr(checkpoint_saving.shutil, "disk_usage", lambda path: plenty)
    with pytest.raises(CheckpointError, match="No space left on device"):
        save_checkpoint(small_disk, 10, StandInEngine(30_000), {"step": 10}, ALONE)
    assert sorted(path.name for path in small_disk.iterdir()) == ["latest", "step_00000000"]
    assert find_checkpoint(small_disk).name == "step_00000000"


def test_pointer_that_cannot_be_written_undoes_the_checkpoint(three, monkeypatch):
    def no_space(path, content):
        path.write_bytes(content[:3])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint_saving, "write_durably", no_space)
    with pytest.raises(CheckpointError, match="No space left"):
        save_checkpoint(three, 30, StandInEngine(), {"step": 30}, ALONE)
    assert not list(three.glob(".tmp*"))
    assert find_checkpoint(three).name == "step_00000020"
