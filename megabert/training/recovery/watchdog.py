"""Ends a rank that hangs: a time limit for each activity, and the stacks of its threads when that has passed.

A hang (a broken network link, a file system that does not answer, a deadlock) shows no error, and a job would hold its
nodes until its time limit. The main thread names each activity that it begins, which sets a deadline: a step has ten
times the time that 99 of 100 steps of its phase took, and everything else a fixed limit. If a deadline passes, the
stacks of all threads are written to the rank's log, the verdict is recorded, and the process ends, even if the disk
does not answer. Time for which the whole process stood still (SIGSTOP, a suspended job) does not count.

Each rank also writes a heartbeat, in a small file that it rewrites in place. Where a run hangs, every rank waits, and
the stacks of most ranks only show a collective. The heartbeats tell which rank has not done its part: the one that is a
step late, still computes, or has stopped writing. Clocks of different hosts are never compared: all times are in rank
0's clock as it was when the ranks met, and go on from there by each rank's own monotonic clock.
"""

import contextlib
import faulthandler
import json
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from megabert.foundation.errors import EXIT_HOPELESS, EXIT_HUNG, DataError
from megabert.foundation.files import open_in_place, open_to_append
from megabert.foundation.json_files import read_json
from megabert.observability.logs import log_path
from megabert.settings.config.run import WatchdogConfig

FOLDER = "heartbeats"
PERIOD_S = 10.0
"""How often a rank writes its heartbeat."""
SILENT_S = 3 * PERIOD_S
"""A rank whose heartbeat is older has stopped, or its node has."""
_BYTES = 256
"""Size of the file; content of a fixed size is replaced in one write."""


@dataclass(frozen=True, kw_only=True)
class Beat:
    """The activity of a rank when it last wrote its heartbeat."""

    rank: int
    host: str
    step: int
    """The step that the rank was making, or made last."""
    doing: str
    """Its activity, in the words of the watchdog's messages."""
    is_waiting: bool
    """Whether it had done its own part and waited for the other ranks."""
    since: float
    """When it began that, in seconds since 1970 by rank 0's clock."""
    time: float
    """When this was written, by the same clock."""


class Heartbeat:
    """Context manager with a thread that writes this rank's activity every ``PERIOD_S`` seconds."""

    def __init__(self, run_dir: Path, rank: int, *, met: float | None = None) -> None:
        """Name the file; it is opened on entering. ``met`` is rank 0's time now, when the ranks have just met."""
        self._path, now = run_dir / FOLDER / f"rank_{rank:03d}.json", time.time() if met is None else met
        self._offset = now - time.clock_gettime(time.CLOCK_BOOTTIME)
        # A frozen record, replaced by one assignment: the thread never sees half of a change.
        self._last = Beat(
            rank=rank, host=socket.gethostname(), step=0, doing="starting", is_waiting=False, since=now, time=now
        )
        self._file: int | None = None
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, name="megabert-heartbeat", daemon=True)

    def __enter__(self) -> "Heartbeat":
        with contextlib.suppress(OSError):  # a full disk ends no run
            self._file = open_in_place(self._path, os.O_WRONLY)
        self.beat()  # here, and not first thing in the thread, which could write it over a newer one
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_closed.set()
        self._thread.join(1.0)
        if self._file is not None and not self._thread.is_alive():  # the file system may be what hangs
            os.close(self._file)

    def note(self, step: int, doing: str, *, is_waiting: bool = False) -> None:
        """Note this rank's activity; costs nothing, since the thread writes it."""
        self._last = replace(self._last, step=step, doing=doing, is_waiting=is_waiting, since=self._now())

    def beat(self) -> None:
        """Write now."""
        beat = asdict(replace(self._last, time=self._now()))
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self._file, json.dumps(beat).ljust(_BYTES - 1).encode() + b"\n", 0)

    def _now(self) -> float:
        """Return the time by rank 0's clock; it also counts the time that a machine sleeps, as the wall clock does."""
        return self._offset + time.clock_gettime(time.CLOCK_BOOTTIME)

    def _beat_on(self) -> None:
        while not self._is_closed.wait(PERIOD_S):
            self.beat()
        self.beat()


def forget_ranks(run_dir: Path, size: int) -> None:
    """Remove the heartbeats of ranks that an earlier, larger start had."""
    for path in (run_dir / FOLDER).glob("rank_*.json"):
        number = path.stem.removeprefix("rank_")
        if number.isdigit() and int(number) >= size:
            with contextlib.suppress(OSError):
                path.unlink()


def read_beats(run_dir: Path) -> list[Beat]:
    """Return the last sign of life of each rank, in order; unreadable files are left out."""
    beats = []
    for path in sorted((run_dir / FOLDER).glob("rank_*.json")):
        with contextlib.suppress(DataError):
            beats.append(read_json(path, Beat, remedy=""))
    return beats


def slowest_ranks(beats: list[Beat]) -> str:
    """Return which ranks hold the others up, as far as the last heartbeats tell; empty if they do not."""
    # The present is the newest heartbeat's. Only the host of rank 0 has a clock to compare with, for ranks all silent.
    is_here = any(beat.rank == 0 and beat.host == socket.gethostname() for beat in beats)
    now = max([beat.time for beat in beats] + [time.time()] * is_here, default=0.0)
    # A rank without a sign of life comes first: its node may be gone, and the others wait for it whatever they report.
    silent = [beat for beat in beats if now - beat.time > SILENT_S]
    alive = [beat for beat in beats if beat not in silent]
    # A living rank holds the others up if it is a step late or has not done its own part of the step.
    newest = max((beat.step for beat in alive), default=0)
    late = [beat for beat in alive if beat.step < newest or not beat.is_waiting]
    # With a silent rank the others are late because of it; if all ranks are alike, none of them is to blame.
    if silent or len(late) == len(alive):
        late = []
    reports = [f"no sign of life from rank {beat.rank} ({beat.host}) for {now - beat.time:.0f} s" for beat in silent]
    reports += [
        f"the others wait for rank {beat.rank} ({beat.host}), {beat.doing} at step {beat.step} for "
        f"{now - beat.since:.0f} s"
        for beat in late
    ]
    return "; ".join(reports[:5]) + (f"; and {len(reports) - 5} more" if len(reports) > 5 else "")


GRACE_S = 5.0
"""Time between the stacks and the end of the process. The other ranks write their stacks meanwhile: as soon as one rank
ends, a launcher kills the others. The files have as long again."""
_KNOWN_STEPS = 3
"""The first steps of a phase compile and allocate: this number of them has the limit of everything else."""
_LATE_S = 1.0
"""A watchdog that wakes so much too late stood still with the whole process (SIGSTOP, Ctrl-Z, a suspended job)."""
_REMEMBERED_STEPS = 1000
_HANGS_AFTER_P99 = 10
"""A step hangs once it takes this many times the 99th percentile of the steps before it."""


class Watchdog:
    """Context manager with a thread that ends the process, unless a new limit is set before the last one passes.

    All ranks wait for a hung one in the next collective. So all of them are ended, each by its own thread.
    """

    def __init__(
        self,
        limits: WatchdogConfig,
        run_dir: Path,
        rank: int,
        *,
        record: Callable[[str], int],
        size: int = 1,
        met: float | None = None,
        end: Any = os._exit,
    ) -> None:
        """Bind the parts.

        Args:
            limits: Time limits in seconds.
            run_dir: Run folder, with this rank's log, which the stacks are written to, and its heartbeat.
            rank: This rank.
            record: Records the message that it is given, and returns the exit code.
            size: Number of ranks.
            met: Rank 0's time now, in seconds since 1970, when the ranks have just met; None reads this host's clock.
            end: Ends the process with an exit code.
        """
        self._limits, self._log, self._rank, self._size = limits, log_path(run_dir, rank), rank, size
        self._run_dir, self._heartbeat, self._step = run_dir, Heartbeat(run_dir, rank, met=met), 0
        self._record, self._end = record, end
        self.owns_folder = False
        """Whether the run folder is known to be this run's: until then a hang leaves nothing there."""
        self._steps: deque[float] = deque(maxlen=_REMEMBERED_STEPS)
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._watch, name="megabert-watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        self.expect_start()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not threading.current_thread():
            self._thread.join()

    @contextlib.contextmanager
    def beating(self) -> Iterator[None]:
        """Write this rank's heartbeats to the run folder inside."""
        self.expect_start()
        if self._rank == 0:
            forget_ranks(self._run_dir, self._size)
        with self._heartbeat:
            yield

    def describe(self) -> str:
        """Return this rank's activity, since when it has lasted, and how long a step takes."""
        so_far = f"{time.monotonic() - self._begun:.0f} s so far"
        if not self._activity.startswith("making"):
            return f"{self._activity} ({so_far}), a step and a checkpoint"
        if not self._steps:
            return f"the first step of this start ({so_far}) and a checkpoint"
        usual = sorted(self._steps)[len(self._steps) // 2]
        return f"step {self._step} ({so_far}, steps take {usual:.1f} s), perhaps the next one, and a checkpoint"

    def start_phase(self) -> None:
        """Forget the steps of the previous phase, which had another pace."""
        self._steps.clear()

    def end_step(self) -> None:
        """Take the time since ``expect_step`` into account."""
        self._steps.append(time.monotonic() - self._begun)

    def expect_step(self, step: int = 0) -> None:
        """Give a step ten times the 99th percentile of its phase, and the first steps the limit of everything else."""
        self._step = step
        if len(self._steps) < _KNOWN_STEPS:
            self.expect("making the first steps of a phase")
            return
        # The percentile, not the mean: steps that also wait for data or a slow disk are part of the pace.
        p99 = sorted(self._steps)[(len(self._steps) * 99 - 1) // 100]
        self.expect("making a step", max(self._limits.min_step_s, _HANGS_AFTER_P99 * p99))

    def expect_start(self) -> None:
        """Give a part of the start, such as the check of one shard, the limit of the whole."""
        self.expect("starting", self._limits.start_up_s)

    def expect(self, doing: str, seconds: float | None = None) -> None:
        """Give an activity that begins now a limit; something that is no step, such as a validation, the fixed one."""
        seconds = self._limits.other_s if seconds is None else seconds
        self._heartbeat.note(self._step, doing)
        self._activity = doing
        with self._changed:
            self._begun = time.monotonic()
            self._doing, self._deadline = f"{doing} takes more than {seconds:.0f} s", self._begun + seconds
            self._changed.notify()

    def wait_for_others(self) -> None:
        """Note that this rank has done its own part: if the step hangs now, another rank holds it up."""
        self._heartbeat.note(self._step, "waiting for the other ranks", is_waiting=True)

    def _watch(self) -> None:
        """Wait until a deadline passes without a new one, in the thread."""
        with self._changed:
            while not self._is_closed and (now := time.monotonic()) < self._deadline:
                look = min(self._deadline, now + PERIOD_S)
                self._changed.wait(look - now)
                if time.monotonic() > look + _LATE_S:
                    self._deadline += time.monotonic() - now
            if self._is_closed:
                return
            doing = self._doing
        self._bark(doing)

    def _bark(self, doing: str) -> None:
        """Write the stacks, record the verdict, end the process.

        Nothing here may take a lock that the hung thread could hold. So there is no logging, whose handlers have locks,
        and the stacks come from ``faulthandler``, which takes none. Nor may anything here wait for a file system, which
        may be what hangs: files are written by other threads.
        """
        message, stacks = f"rank {self._rank} hangs: {doing}", _stacks()
        codes, is_logged = [EXIT_HUNG if self.owns_folder else EXIT_HOPELESS], threading.Event()

        def write_files() -> None:
            with contextlib.suppress(OSError, DataError):
                with open_to_append(self._log) as log:
                    log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}; the stacks of all threads:\n{stacks}")
                is_logged.set()
            codes.append(self._diagnose(message))

        def tell() -> None:
            has_log = self.owns_folder and is_logged.wait(0.4 * GRACE_S)
            place = f"its stacks are in {self._log}" if has_log else f"the stacks of all threads:\n{stacks}"
            os.write(2, f"megabert: {message}; {place}\n".encode())

        works = (tell, write_files) if self.owns_folder else (tell,)
        writers = [threading.Thread(target=work, daemon=True) for work in works]
        for writer in writers:
            writer.start()
        deadline = time.monotonic() + 2 * GRACE_S
        time.sleep(GRACE_S)
        for writer in writers:
            writer.join(max(0.0, deadline - time.monotonic()))
        self._end(codes[-1])

    def _diagnose(self, message: str) -> int:
        """Record the message, and which rank the others wait for; return the exit code."""
        self._heartbeat.beat()
        time.sleep(0.4 * GRACE_S)  # the other ranks write their heartbeats
        beats = [beat for beat in read_beats(self._run_dir) if beat.rank < self._size]  # older starts had more ranks
        slowest = slowest_ranks(beats)
        return self._record(f"{message}; {slowest}" if slowest else message)


def _stacks() -> str:
    """Return the stacks of all threads, from a file in memory: while ``faulthandler`` writes, every thread stands."""
    with os.fdopen(os.memfd_create("stacks"), "w+", errors="replace") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()
