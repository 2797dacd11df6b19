"""A sign of life from each rank, in a small file that is rewritten in place; where a run hangs, they tell for whom."""

import contextlib
import json
import os
import socket
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

FOLDER = "heartbeats"
PERIOD_S = 10.0
SILENT_S = 3 * PERIOD_S
_BYTES = 256


@dataclass(frozen=True, kw_only=True)
class Beat:
    """Where a rank stood."""

    rank: int
    host: str
    step: int
    doing: str
    is_waiting: bool
    """Whether it had done its own part and waited for the other ranks."""
    since: float
    """When it began that, in seconds since 1970."""
    time: float
    """When this was written."""


class Heartbeat:
    """Context manager with a thread that writes this rank's place every ``PERIOD_S`` seconds."""

    def __init__(self, run_dir: Path, rank: int) -> None:
        """Begin nowhere; the file is opened on entering."""
        self._path, self._rank = run_dir / FOLDER / f"rank_{rank:03d}.json", rank
        self._place = (0, "starting", False, time.time())  # one assignment: the thread never sees half of it
        self._file: int | None = None
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, name="megabert-heartbeat", daemon=True)

    def __enter__(self) -> "Heartbeat":
        with contextlib.suppress(OSError):  # a full disk ends no run
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_closed.set()
        self._thread.join(1.0)
        if self._file is not None and not self._thread.is_alive():  # the file system may be what hangs
            os.close(self._file)

    def note(self, step: int, doing: str, *, is_waiting: bool = False) -> None:
        """Note where this rank stands; costs nothing, the thread writes it."""
        self._place = (step, doing, is_waiting, time.time())

    def beat(self) -> None:
        """Write now."""
        step, doing, is_waiting, since = self._place
        host = socket.gethostname()
        beat = Beat(
            rank=self._rank, host=host, step=step, doing=doing, is_waiting=is_waiting, since=since, time=time.time()
        )
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self._file, json.dumps(asdict(beat)).ljust(_BYTES - 1).encode() + b"\n", 0)

    def _beat_on(self) -> None:
        self.beat()
        while not self._is_closed.wait(PERIOD_S):
            self.beat()
        self.beat()


def read_beats(run_dir: Path) -> list[Beat]:
    """Return the last sign of life of each rank, in order; those that cannot be read are left out."""
    beats = []
    for path in sorted((run_dir / FOLDER).glob("rank_*.json")):
        with contextlib.suppress(OSError, ValueError, TypeError):
            beats.append(Beat(**json.loads(path.read_text(encoding="utf-8"))))
    return beats


def slowest_ranks(beats: list[Beat], *, now: float) -> str:
    """Return who holds the others up, as far as the ranks' last signs of life tell; empty where they do not."""
    silent = [beat for beat in beats if now - beat.time > SILENT_S]
    alive = [beat for beat in beats if beat not in silent]
    newest = max((beat.step for beat in alive), default=0)
    behind = [beat for beat in alive if beat.step < newest or not beat.is_waiting]
    if len(behind) == len(alive):  # all alike: no one is told apart
        behind = []
    found = [f"no sign of life from rank {beat.rank} ({beat.host}) for {now - beat.time:.0f} s" for beat in silent]
    found += [
        f"the others wait for rank {beat.rank} ({beat.host}), {beat.doing} at step {beat.step} for "
        f"{now - beat.since:.0f} s"
        for beat in behind
    ]
    return "; ".join(found[:5]) + (f"; and {len(found) - 5} more" if len(found) > 5 else "")
