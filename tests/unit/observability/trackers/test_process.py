"""A tracker whose library fails, in whatever way, is one warning; the run and its rows are as without it."""

import os
import signal
import subprocess
import sys
import time

import pytest

from megabert.observability.metrics import MetricWriter, read_metrics
from megabert.observability.trackers import process
from megabert.observability.trackers.follower import run_id
from megabert.settings.config.run import LoggingConfig

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


def write(run_dir, steps, resumed_step=0, pause_s=0.0):
    logging = LoggingConfig(trackers=("wandb",))
    writer = MetricWriter(run_dir, resumed_step=resumed_step, logging=logging)
    for step in steps:
        writer.write(step, {"train/loss": float(step)})
        time.sleep(pause_s)
    writer.close()


@pytest.mark.parametrize(("where", "fault", "phrase"), FAULTS)
def test_fault_is_one_warning(tmp_path, stand_in, monkeypatch, caplog, where, fault, phrase):
    # A process that hangs gets a second; a process that fails by itself gets as long as a busy machine needs.
    monkeypatch.setattr(process, "FINISH_S", 1 if fault == HANG else 60)
    stand_in(**{where: fault})
    write(tmp_path / "run", range(1, 5))
    assert [row["step"] for row in read_metrics(tmp_path / "run")] == [1, 2, 3, 4]
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1, warnings
    assert phrase in warnings[0]
    assert "The run continues without it" in warnings[0]


def test_process_that_outlives_sigkill_does_not_hold_the_run(tmp_path, stand_in, monkeypatch, caplog):
    stand_in()
    trackers = [process.TrackerProcess("wandb", tmp_path / name, LoggingConfig()) for name in ("one", "two")]
    followers, waits, clock = [tracker._process for tracker in trackers], [], [0.0]

    def wait(timeout=None):
        assert all(follower.stdin.closed for follower in followers), "all finish at the same time"
        waits.append(timeout)
        clock[0] += timeout
        raise subprocess.TimeoutExpired("wandb", timeout)

    with monkeypatch.context() as patch:
        patch.setattr(process, "monotonic", lambda: clock[0])
        for follower in followers:
            patch.setattr(follower, "wait", wait)
        process.finish(trackers)
    assert waits == [process.FINISH_S, process.KILLED_S, 0.0, process.KILLED_S], "they have the time together"
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
    write(tmp_path, [1])
    assert "wandb: ended without a word. The run continues" in caplog.text
    assert "no network" not in caplog.text


def test_next_start_sends_all_rows(tmp_path, stand_in):
    received = stand_in()
    write(tmp_path / "run", [1, 2, 3])
    write(tmp_path / "run", [3, 4], resumed_step=2)
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
    write(tmp_path / "run", [2], resumed_step=1)  # waits for the lock of the first process
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
    write(tmp_path, [1, 2])
    assert caplog.text.count("trackers.json") == 1
    assert "Remove it" in caplog.text
    assert len(read_metrics(tmp_path)) == 2


def test_link_in_the_place_of_its_log_is_one_warning(tmp_path, stand_in, caplog):
    stand_in()
    (tmp_path / "run" / "logs").mkdir(parents=True)
    (tmp_path / "run" / "logs" / "tracker_wandb.log").symlink_to(tmp_path / "elsewhere")
    write(tmp_path / "run", [1, 2])
    assert caplog.text.count("is a link") == 1
    assert not (tmp_path / "elsewhere").exists()
