import os
import re
import signal
import socket
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from megabert.foundation.errors import EXIT_HOPELESS, EXIT_HUNG
from megabert.settings.config.run import WatchdogConfig
from megabert.training.recovery import watchdog as module


@pytest.fixture(autouse=True)
def no_grace(monkeypatch):
    monkeypatch.setattr(module, "GRACE_S", 0.05)


class Guarded:
    """A watchdog whose bite sets an event."""

    def __init__(self, run_dir, record=lambda message: EXIT_HUNG, **limits: float) -> None:
        self.codes: list[int] = []
        self.has_ended = threading.Event()
        (run_dir / "logs").mkdir()
        self.log = run_dir / "logs" / "rank_002.log"
        config = WatchdogConfig(**{"min_step_s": 0.1, "other_s": 30, "start_up_s": 30, **limits})
        self.watchdog = module.Watchdog(config, run_dir, 2, record=record, end=self.end)
        self.watchdog.owns_folder = True

    def end(self, code: int) -> None:
        self.codes.append(code)
        self.has_ended.set()

    def wait_for_end(self) -> list[int]:
        """Return the exit codes once the watchdog has ended the process."""
        with self.watchdog:
            assert self.has_ended.wait(10)
        return self.codes


def test_hang_writes_stacks_and_ends_with_the_recorded_code(tmp_path):
    messages: list[str] = []
    guarded = Guarded(tmp_path, lambda message: messages.append(message) or 70, other_s=0.1)
    with guarded.watchdog as watchdog:
        watchdog.expect("validating")
        assert guarded.has_ended.wait(10)
    assert guarded.codes == [70]
    assert messages == ["rank 2 hangs: validating takes more than 0 s"]
    log = guarded.log.read_text()
    assert "validating takes more than" in log
    assert "test_hang_writes_stacks" in log


def test_record_that_hangs_does_not_save_the_process(tmp_path):
    guarded = Guarded(tmp_path, lambda message: time.sleep(60) or 70, start_up_s=0.1)
    assert guarded.wait_for_end() == [EXIT_HUNG]


def test_log_that_hangs_does_not_save_the_process(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(module, "open_to_append", lambda path: threading.Event().wait())
    guarded = Guarded(tmp_path, start_up_s=0.1)
    assert guarded.wait_for_end() == [EXIT_HUNG]
    shown = capfd.readouterr().err
    assert "megabert: rank 2 hangs: starting takes more than 0 s; the stacks of all threads" in shown
    assert "test_log_that_hangs" in shown


def test_hang_before_the_folder_is_known_leaves_nothing_there(tmp_path, capfd):
    guarded = Guarded(tmp_path, lambda message: pytest.fail("recorded"), start_up_s=0.1)
    guarded.watchdog.owns_folder = False
    assert guarded.wait_for_end() == [EXIT_HOPELESS]
    assert not guarded.log.exists()
    assert "test_hang_before_the_folder_is_known" in capfd.readouterr().err


def test_time_in_which_the_process_stands_still_does_not_count(tmp_path):
    guarded = Guarded(tmp_path, start_up_s=0.5)
    child = os.fork()
    if not child:
        with guarded.watchdog:
            time.sleep(0.1)  # its thread has to run
            os.kill(os.getpid(), signal.SIGSTOP)
            has_barked = guarded.has_ended.wait(0.2)
            guarded.has_ended.wait(10)  # the rest of its time still ends it
        os._exit(1 if has_barked or guarded.codes != [EXIT_HUNG] else 0)
    os.waitpid(child, os.WUNTRACED)
    time.sleep(1.8)  # longer than its limit
    os.kill(child, signal.SIGCONT)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_limit_of_a_step_follows_the_phase(tmp_path):
    guarded = Guarded(tmp_path, min_step_s=60)
    watchdog = guarded.watchdog
    watchdog.expect_step()
    assert "first steps" in watchdog._doing
    for _ in range(100):
        watchdog.end_step()
    watchdog.expect_step()
    assert "making a step takes more than 60 s" in watchdog._doing
    watchdog._steps.extend([30.0] * 5)
    watchdog.expect_step()
    assert "making a step takes more than 300 s" in watchdog._doing
    watchdog.start_phase()
    watchdog.expect_step()
    assert "first steps" in watchdog._doing


def test_watchdog_tells_what_a_signal_waits_for(tmp_path):
    watchdog = Guarded(tmp_path).watchdog
    watchdog.expect("validating")
    assert re.fullmatch(r"validating \(0 s so far\), a step and a checkpoint", watchdog.describe())
    watchdog.expect_step(7)
    assert watchdog.describe() == "the first step of this start (0 s so far) and a checkpoint"
    watchdog._steps.extend([1.0, 30.0, 31.0])
    watchdog.expect_step(8)
    assert watchdog.describe() == "step 8 (0 s so far, steps take 30.0 s), perhaps the next one, and a checkpoint"


class Waiting:
    """The watchdog's condition, on a clock of its own: while it waits, the work advances just before the limit."""

    def __init__(self, monkeypatch, rounds: int) -> None:
        self.now, self.waits, self.rounds = 0.0, [], rounds
        monkeypatch.setattr(module, "time", SimpleNamespace(**{**vars(time), "monotonic": lambda: self.now}))

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...

    def notify(self) -> None: ...

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += 0.75 * seconds
        if len(self.waits) < self.rounds:
            self.watchdog.expect("working")
        else:
            self.watchdog._is_closed = True


def test_work_that_advances_is_left_alone(tmp_path, monkeypatch):
    condition = Waiting(monkeypatch, rounds=5)
    guarded = Guarded(tmp_path, other_s=2)
    condition.watchdog = guarded.watchdog
    monkeypatch.setattr(guarded.watchdog, "_changed", condition)
    guarded.watchdog.expect("working")
    guarded.watchdog._watch()  # what its thread does
    assert condition.waits == [2] * 5, "each time the whole limit is left"
    assert not guarded.codes
    assert not guarded.log.exists()


def beat(rank: int, step: int = 7, is_waiting: bool = True, age_s: float = 1.0) -> module.Beat:
    doing = "waiting for the other ranks" if is_waiting else "making a step"
    return module.Beat(
        rank=rank, host=f"n{rank}", step=step, doing=doing, is_waiting=is_waiting, since=935.0, time=1000.0 - age_s
    )


def test_place_is_written_and_read_back(tmp_path):
    with module.Heartbeat(tmp_path, 3) as heartbeat:
        heartbeat.note(7, "making a step")
        heartbeat.beat()
        (last,) = module.read_beats(tmp_path)
        assert (last.rank, last.step, last.doing, last.is_waiting) == (3, 7, "making a step", False)
        heartbeat.note(12_345_678, "x", is_waiting=True)
    (last,) = module.read_beats(tmp_path)
    assert (last.step, last.doing, last.is_waiting) == (12_345_678, "x", True)
    assert abs(last.time - time.time()) < 60


def test_torn_file_is_left_out(tmp_path):
    for rank in (0, 1):
        with module.Heartbeat(tmp_path, rank):
            pass
    (tmp_path / "heartbeats" / "rank_000.json").write_text('{"rank": 0, "ho')
    assert [beat.rank for beat in module.read_beats(tmp_path)] == [1]


HERE = replace(beat(0), host=socket.gethostname())
SILENT = "no sign of life from rank 1 (n1) for 80 s"


@pytest.mark.parametrize(
    ("beats", "shown"),
    [
        ([beat(0), beat(1, is_waiting=False), beat(2)], "wait for rank 1 (n1), making a step at step 7 for 64 s"),
        ([beat(0), beat(1), beat(2, step=6)], "wait for rank 2 (n2)"),
        ([beat(0), beat(1, age_s=module.SILENT_S + 51)], SILENT),
        ([beat(0), beat(1, is_waiting=False, age_s=module.SILENT_S + 51), beat(2, is_waiting=False)], SILENT),
        ([beat(rank, is_waiting=rank > 7) for rank in range(12)], "; and 3 more"),
        ([HERE, beat(1)], "no sign of life from rank 0"),  # the silence of all ranks is seen on rank 0's host alone
        ([beat(0), beat(1)], None),
        ([beat(0, is_waiting=False), beat(1, is_waiting=False)], None),
        ([], None),
    ],
    ids=["computes", "a step behind", "silent", "silent alone", "many", "all silent", "wait", "compute", "none"],
)
def test_rank_that_the_others_wait_for_is_named(beats, shown):
    named = module.slowest_ranks(beats)
    assert shown in named if shown else named == ""
    assert named == shown or shown != SILENT


def test_ranks_of_an_earlier_larger_start_are_forgotten(tmp_path):
    for rank in range(4):
        with module.Heartbeat(tmp_path, rank):
            pass
    module.forget_ranks(tmp_path, 2)
    assert [beat.rank for beat in module.read_beats(tmp_path)] == [0, 1]


@pytest.mark.parametrize("skew_s", [-90.0, 300.0])
def test_clocks_of_other_hosts_do_not_matter(tmp_path, monkeypatch, skew_s):
    sound = [module.Heartbeat(tmp_path, 0, met=5000.0)]
    monkeypatch.setattr("megabert.training.recovery.watchdog.socket.gethostname", lambda: "n1")
    monkeypatch.setattr("megabert.training.recovery.watchdog.time.time", lambda: 5000.0 + skew_s)
    sound.append(module.Heartbeat(tmp_path, 1, met=5000.0))
    for heartbeat in sound:
        heartbeat.note(7, "making a step")
        with heartbeat:
            pass
    assert all(abs(beat.time - 5000.0) < 25 and beat.since <= beat.time for beat in module.read_beats(tmp_path))
    assert module.slowest_ranks(module.read_beats(tmp_path)) == ""
