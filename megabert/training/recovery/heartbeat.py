"""A sign of life from each rank, in a small file that it rewrites in place.

Where a run hangs, every rank waits, and the stacks of most ranks only show a collective. The heartbeats tell which rank
has not done its part: the one that is a step late, still computes, or has stopped writing.

Clocks of different hosts are never compared: all times are in rank 0's clock as it was when the ranks met, and go on
from there by each rank's own monotonic clock.
"""

import contextlib
import json
import os
import socket
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from megabert.foundation.errors import DataError
from megabert.foundation.files import open_in_place
from megabert.foundation.json_files import read_json

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
