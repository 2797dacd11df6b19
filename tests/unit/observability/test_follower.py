"""Reading the growing file; trackio and wandb themselves, offline: their own readers find the rows of the file.

A tracker whose library fails, in whatever way, is one warning; the run and its rows are as without it.
"""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
from support.tracker_stores import expected_points, read_trackio, read_wandb

from megabert.foundation import files
from megabert.foundation.errors import DataError
from megabert.foundation.files import atomic_write
from megabert.observability import follower
from megabert.observability.follower import (
    FINISH_S,
    KILLED_S,
    TrackerProcess,
    finish,
    flat,
    follow_run,
    new_rows,
    run_id,
)
from megabert.observability.metrics import MetricWriter, read_metrics
from megabert.settings.config.loading import load_run_config
from megabert.settings.config.run import LoggingConfig
from megabert.training.run.folder import record_run


def test_rows_are_read_as_the_file_grows(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "a": 1.0}\n{"step": 2, "a"')
    with path.open("rb") as rows, path.open("a") as file:
        assert list(new_rows(rows)) == [{"step": 1, "a": 1.0}]
        file.write(': 2.0}\n{"step": 3}\n')
        file.flush()
        assert [row["step"] for row in new_rows(rows)] == [2, 3]


def test_damaged_lines_are_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'[]\n\xff\n{"step": "1"}\n' + b"[" * 100_000 + b'\n{"step": 1}\n')
    with path.open("rb") as rows:
        assert list(new_rows(rows)) == [{"step": 1}]


def test_numbers_have_the_names_that_tensorboard_shows():
    row = {"step": 3, "phase": 1, "train/loss": 2.0, "train/trust_ratio/all": {"min": 1.0, "max": 3.0}, "none": None}
    assert flat(row) == {
        "progress/phase": 1,
        "train/loss": 2.0,
        "train/trust_ratio/all/min": 1.0,
        "train/trust_ratio/all/max": 3.0,
    }


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """A run folder with a configuration, and trackio's own folder next to it; rows must not go elsewhere."""
    for name in ("trackio", "wandb"):
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed: pip install 'megabert[{name}]'")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("TRACKIO_SERVER_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_MODE", "online")
    (tmp_path / "run").mkdir()
    atomic_write(tmp_path / "run" / "config.yaml", "seed: 42\nphases:\n- max_seq_length: 64\nengine: null\n")
    return tmp_path / "run"


def write(run_dir, resumed_step, steps, *, loss=1.0, trackers=("trackio", "wandb")):
    logging = LoggingConfig(trackers=trackers, tracker_project="tests")
    writer = MetricWriter(run_dir, resumed_step=resumed_step, logging=logging)
    for step in steps:
        writer.write(step, {"phase": 1, "train/loss": loss / step, "train/trust_ratio/all": [1.0, 2.0]})
        if step % 3 == 0:
            writer.write(step, {"phase": 1, "eval/mlm_loss": 2.0 / step})
    writer.close()


def test_stores_hold_the_rows_of_a_run_that_was_set_back(begun, caplog):
    write(begun, 0, range(1, 8))
    write(begun, 5, range(6, 10), loss=3.0)  # steps 6 and 7 are made again, with other values
    assert "WARNING" not in {record.levelname for record in caplog.records}, caplog.text
    expected = expected_points(begun)
    assert sorted(expected) == list(range(1, 10))
    assert expected[6]["train/loss"] == 0.5
    points, config = read_wandb(begun)
    assert points == expected
    assert {name: config[name] for name in ("seed", "phases.0.max_seq_length")} == {
        "seed": 42,
        "phases.0.max_seq_length": 64,
    }
    runs, configs = read_trackio("tests")
    assert runs == {run_id(begun): expected}
    assert configs[run_id(begun)]["phases.0.max_seq_length"] == 64


def test_trackers_that_start_together_take_one_name(tmp_path, monkeypatch):
    both, write = threading.Barrier(2), files.atomic_write

    def write_late(*given):
        with suppress(threading.BrokenBarrierError):
            both.wait(1)  # so that the other one, if nothing holds it back, has looked for the file too
        write(*given)

    monkeypatch.setattr(files, "atomic_write", write_late)
    (tmp_path / "logs").mkdir()
    with ThreadPoolExecutor(2) as pool:
        names = list(pool.map(run_id, [tmp_path, tmp_path]))
    assert names[0] == names[1] == run_id(tmp_path)


class _Library(SimpleNamespace):
    """In the place of wandb: drops rows and reports nothing."""

    step = 0

    def log(self, *_, **__):
        pass

    finish = log


def test_full_disk_under_wandb_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **_: _Library(), Settings=lambda **_: None))
    (tmp_path / "wandb").mkdir()
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    follow_run("wandb", tmp_path, LoggingConfig(), lambda: True)
    assert list((tmp_path / "wandb").iterdir()) == [], "the look for space leaves nothing"

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(follower.files, "write_durably", full)
    with pytest.raises(DataError, match="no space left"):
        follow_run("wandb", tmp_path, LoggingConfig(), lambda: True)


def test_command_copies_the_rows_of_a_run_that_has_ended(begun, megabert):
    record_run(begun, load_run_config("debug"), {})
    write(begun, 0, [1, 2], trackers=())
    (begun / "status.json").write_text(json.dumps({"status": "done"}))
    printed = megabert("track", begun, "trackio", "--project", "by_hand").out
    runs, configs = read_trackio("by_hand")
    assert runs == {run_id(begun): expected_points(begun)}
    assert configs[run_id(begun)]["seed"] == 42
    assert "trackio has the rows" in printed


def test_command_refuses_a_missing_library_and_a_bad_project(begun, monkeypatch, megabert):
    record_run(begun, load_run_config("debug"), {})
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert "wandb is not installed: pip install 'megabert[wandb]'" in megabert("track", begun, "wandb", code=2).err
    assert "tracker_project" in megabert("track", begun, "wandb", "--project", "../own", code=2).err


STAND_IN = """
import json, os, signal, sys, time
{at_import}
class Run:
    step = 0
    def log(self, values, step):
        if step == 2:
            {in_log}
        with open({received!r}, "a") as file:
            file.write(json.dumps([step, values]) + "\\n")
    def finish(self):
        {at_finish}
def Settings(**_): return None
def init(**arguments):
    {at_start}
    return Run()
"""
HANG = "time.sleep(600)"
# The point of failure, its kind, a phrase of the warning.
FAULTS = (
    ("at_import", "import no_such_library", "no_such_library is not installed: pip install 'megabert[wandb]'"),
    ("at_import", "raise RuntimeError('half installed')", "RuntimeError: half installed"),
    ("at_start", "raise ConnectionError('no network')", "ConnectionError: no network"),
    ("at_start", "sys.exit(3)", "SystemExit: 3"),
    ("at_start", HANG, "did not take the last rows within 1 seconds"),
    ("in_log", "raise OSError(28, 'No space left on device')", "No space left on device"),
    ("in_log", "os.kill(os.getpid(), signal.SIGSEGV)", "was ended by SIGSEGV"),
    ("in_log", "import warnings; warnings.warn('could not be persisted')", "could not be persisted"),
    ("in_log", HANG, "did not take the last rows within 1 seconds"),
    ("at_finish", "raise ValueError('refused')", "ValueError: refused"),
    ("at_finish", HANG, "did not take the last rows within 1 seconds"),
)


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Return a function that puts a module in wandb's place, with faults; the rows that it gets are in a file."""

    def place(**faults):
        parts = dict.fromkeys(("at_import", "in_log", "at_finish", "at_start"), "pass")
        folder = tmp_path / "library"
        folder.mkdir()
        (folder / "wandb.py").write_text(STAND_IN.format(received=str(tmp_path / "received"), **{**parts, **faults}))
        monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
        return tmp_path / "received"

    return place


def write_steps(run_dir, steps, resumed_step=0):
    logging = LoggingConfig(trackers=("wandb",))
    writer = MetricWriter(run_dir, resumed_step=resumed_step, logging=logging)
    for step in steps:
        writer.write(step, {"train/loss": float(step)})
    writer.close()


@pytest.mark.parametrize(("where", "fault", "phrase"), FAULTS)
def test_fault_is_one_warning(tmp_path, stand_in, monkeypatch, caplog, where, fault, phrase):
    # A process that hangs gets a second; a process that fails by itself gets as long as a busy machine needs.
    monkeypatch.setattr(follower, "FINISH_S", 1 if fault == HANG else 60)
    stand_in(**{where: fault})
    write_steps(tmp_path / "run", range(1, 5))
    assert [row["step"] for row in read_metrics(tmp_path / "run")] == [1, 2, 3, 4]
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1, warnings
    assert phrase in warnings[0]
    assert "The run continues without it" in warnings[0]


def test_process_that_outlives_sigkill_does_not_hold_the_run(tmp_path, stand_in, monkeypatch, caplog):
    stand_in()
    trackers = [TrackerProcess("wandb", tmp_path / name, LoggingConfig()) for name in ("one", "two")]
    followers, waits, clock = [tracker._process for tracker in trackers], [], [0.0]

    def wait(timeout=None):
        assert all(follower.stdin.closed for follower in followers), "all finish at the same time"
        waits.append(timeout)
        clock[0] += timeout
        raise subprocess.TimeoutExpired("wandb", timeout)

    with monkeypatch.context() as patch:
        patch.setattr("megabert.observability.follower.monotonic", lambda: clock[0])
        for follower in followers:
            patch.setattr(follower, "wait", wait)
        finish(trackers)
    assert waits == [FINISH_S, KILLED_S, 0.0, KILLED_S], "they have the time together"
    assert caplog.text.count("did not take the last rows") == 2
    assert [follower.wait(60) for follower in followers] == [-signal.SIGKILL] * 2


def test_fault_in_the_middle_is_said_while_the_run_goes_on(tmp_path, stand_in, caplog):
    stand_in(in_log="raise ValueError('refused')")
    writer = MetricWriter(tmp_path, resumed_step=0, logging=LoggingConfig(trackers=("wandb",)))
    deadline = time.monotonic() + 60
    step = 0
    while "refused" not in caplog.text and time.monotonic() < deadline:
        step += 1
        writer.write(step, {"train/loss": 1.0})
        time.sleep(0.05)
    writer.write(step + 1, {"train/loss": 1.0})
    assert caplog.text.count("wandb: ValueError: refused") == 1
    writer.close()
    assert caplog.text.count("wandb: ValueError: refused") == 1
    assert len(read_metrics(tmp_path)) == step + 1


def test_reason_is_a_line_of_this_start(tmp_path, stand_in, caplog):
    stand_in(at_start="os._exit(3)")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/tracker_wandb.log").write_text("ConnectionError: no network\n")
    write_steps(tmp_path, [1])
    assert "wandb: ended without a word. The run continues" in caplog.text
    assert "no network" not in caplog.text


def test_next_start_sends_all_rows(tmp_path, stand_in):
    received = stand_in()
    write_steps(tmp_path / "run", [1, 2, 3])
    write_steps(tmp_path / "run", [3, 4], resumed_step=2)
    lines = received.read_text().splitlines()
    assert [line[1] for line in lines] == ["1", "2", "3", "1", "2", "3", "4"]
    assert lines[0] == '[1, {"train/loss": 1.0}]'


def test_process_ends_with_a_run_that_was_killed(tmp_path, stand_in):
    received = stand_in()
    child = os.fork()
    if not child:
        writer = MetricWriter(tmp_path / "run", resumed_step=0, logging=LoggingConfig(trackers=("wandb",)))
        writer.write(1, {"train/loss": 1.0})
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    write_steps(tmp_path / "run", [2], resumed_step=1)  # waits for the lock of the first process
    steps = [line[1] for line in received.read_text().splitlines()]
    assert steps[:1] == ["1"], "the first process sends what the killed run had written"
    assert steps[-2:] == ["1", "2"], "the second one begins anew, and after the first"


def test_name_of_a_run_stays(tmp_path):
    assert run_id(tmp_path) == run_id(tmp_path)
    (tmp_path / "fork").mkdir()
    assert run_id(tmp_path / "fork") != run_id(tmp_path)


@pytest.mark.parametrize("content", ["", "{}", '{"run_id": "../../x"}', '{"run_id": 7}', "[" * 100_000])
def test_damaged_name_is_one_warning(tmp_path, stand_in, caplog, content):
    stand_in()
    (tmp_path / "trackers.json").write_text(content)
    write_steps(tmp_path, [1, 2])
    assert caplog.text.count("trackers.json") == 1
    assert "Remove it" in caplog.text
    assert len(read_metrics(tmp_path)) == 2


def test_link_in_the_place_of_its_log_is_one_warning(tmp_path, stand_in, caplog):
    stand_in()
    (tmp_path / "run" / "logs").mkdir(parents=True)
    (tmp_path / "run" / "logs" / "tracker_wandb.log").symlink_to(tmp_path / "elsewhere")
    write_steps(tmp_path / "run", [1, 2])
    assert caplog.text.count("is a link") == 1
    assert not (tmp_path / "elsewhere").exists()
