"""A build that was stopped, killed or damaged is finished to the same bytes; damage beyond repair is named."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from unit.data_prep.builds import Stopping, hashes

from data_prep.execution.build_state import BuildState, InputRecord, read_state, write_state
from megabert.foundation.files import MAX_SMALL_BYTES
from megabert.settings.config.loading import to_dict

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize("tasks", [1, 9, 17, 30])
def test_build_stopped_anywhere_continues_to_the_same_bytes(built, build, tmp_path, tasks):
    with pytest.raises(KeyboardInterrupt):
        build(executor=Stopping(tasks))
    assert not list((tmp_path / "out").rglob("manifest.json"))
    assert not list((tmp_path / "out").rglob("*.tmp"))
    assert hashes(build().folder) == hashes(built.folder)


def test_killed_build_leaves_no_worker_and_continues_to_the_same_bytes(built, build, corpus, tmp_path):
    output = tmp_path / "out"
    flags = "--vocab-size 2000 --lengths 64 128 --dupe-factor 2 --validation-share 0.1 --workers 2"
    command = [sys.executable, "-m", "data_prep", "build", "--input", str(corpus), *flags.split()]
    process = subprocess.Popen([*command, "--output", str(output)], stderr=subprocess.DEVNULL, cwd=ROOT)
    deadline = time.monotonic() + 180
    try:
        while not list((output / "work" / "records").rglob("*.jsonl")):
            assert process.poll() is None, "the build has failed"
            assert time.monotonic() < deadline, "no unit was finished in three minutes"
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    (output / "work" / ".rest.arrow.89abcdef.tmp").write_text("left by the killed build")
    build(output)  # the lock is free: it went with its holder
    assert not list(output.rglob("*.tmp"))
    assert hashes(output) == hashes(built.folder)


def test_state_file_cut_off_by_a_kill_is_no_foreign_file(build, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".build.json.0123abcd.tmp").write_text("{")
    with pytest.raises(KeyboardInterrupt):
        build(executor=Stopping(0))
    assert not list((tmp_path / "out").glob(".*.tmp"))


def test_record_of_more_inputs_than_a_small_file_holds_is_read_again(make_config, tmp_path):
    state = BuildState(to_dict(make_config()), [InputRecord("a" * MAX_SMALL_BYTES, 1, "0" * 64)], {})
    write_state(tmp_path, state)
    assert read_state(tmp_path) == state


def test_unit_that_was_recorded_twice_is_counted_once(own_copy, build):
    """A shard that was deleted is written again, and recorded again."""
    manifest = own_copy / "instances" / "64" / "manifest.json"
    before = manifest.read_bytes()
    for _ in range(2):
        (own_copy / "instances" / "64" / "train-00001-00.arrow").unlink()
        manifest.unlink()
        build(own_copy)
        assert manifest.read_bytes() == before
