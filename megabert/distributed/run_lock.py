"""The lock of a run folder: one writer at a time, orphans included.

Rank 0 takes the lock file exclusively, then every rank holds it shared until it ends, however it ends: a second run is
refused as long as any rank of the first lives.
"""

import contextlib
import datetime
import fcntl
import json
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from megabert.distributed.all_or_none import run_on_all_ranks
from megabert.distributed.process_group import World
from megabert.errors import CheckpointError
from megabert.schema import try_lock

logger = logging.getLogger(__name__)

LOCK_NAME = ".lock"


class RunLock:
    """Context manager that holds a run folder for all ranks of a world."""

    def __init__(self, run_dir: Path, world: World) -> None:
        self.run_dir = run_dir
        self.path = run_dir / LOCK_NAME
        self.world = world
        self._file: Any = None
        self._holder: dict[str, Any] = {}

    def __enter__(self) -> "RunLock":
        """Take the lock; every rank calls it.

        Raises:
            CheckpointError: On every rank alike: another run holds it, or the folder cannot be written.
        """
        places = self.world.gather((socket.gethostname(), os.getpid()))
        try:
            run_on_all_ranks(self.world, lambda: self._try(lambda: self._take(places)) if self.world.is_main else None)
            run_on_all_ranks(self.world, lambda: None if self.world.is_main else self._try(self._join))
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Let go; a lock that was let go in order is not stale."""
        if self.world.is_main and self._file is not None:
            with contextlib.suppress(OSError):  # a full disk must not hide the error that ended the run
                self._write({**self._holder, "released": True})
        self._close()

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except OSError as failure:
            raise CheckpointError(
                f"{self.run_dir}: cannot be written ({failure.strerror}). Name another --run-dir."
            ) from failure

    def _take(self, places: list[tuple[str, int]]) -> None:
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self._open()
        previous = self._read()
        self._lock(fcntl.LOCK_EX, previous)
        if previous and not previous.get("released"):
            logger.warning(
                "%s: taking over the stale lock of host %s, pid %s, from %s: that run ended without letting go",
                self.run_dir,
                previous.get("host"),
                previous.get("pid"),
                previous.get("since"),
            )
        host, pid = places[0]
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._holder = {"host": host, "pid": pid, "since": now, "ranks": places}
        self._write(self._holder)
        self._lock(fcntl.LOCK_SH, {})  # not atomic: a rival may slip in, and then this is refused

    def _join(self) -> None:
        self._open()
        self._lock(fcntl.LOCK_SH, self._read())

    def _open(self) -> None:
        # One descriptor for everything: over NFS, closing any other of this file would drop the lock.
        self._file = os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+")

    def _lock(self, mode: int, holder: dict[str, Any]) -> None:
        try:
            is_locked = try_lock(self._file, mode)
        except BlockingIOError:
            raise CheckpointError(_refusal(self.run_dir, holder), see="the-run-folder-is-in-use") from None
        if not is_locked:
            logger.warning("%s: this file system has no locks; do not start the same run twice", self.path)

    def _read(self) -> dict[str, Any]:
        self._file.seek(0)
        try:
            found = json.loads(self._file.read() or "{}")
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def _write(self, content: dict[str, Any]) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._file.write(json.dumps(content) + "\n")
        self._file.flush()

    def _close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None


def _refusal(run_dir: Path, holder: dict[str, Any]) -> str:
    here = socket.gethostname()
    alive = [pid for host, pid in holder.get("ranks", []) if host == here and Path(f"/proc/{pid}").exists()]
    ranks = f"; ranks alive here: pids {', '.join(map(str, alive))}" if alive else ""
    return (
        f"{run_dir}: another run holds this folder: host {holder.get('host', 'unknown')}, "
        f"pid {holder.get('pid', 'unknown')}, since {holder.get('since', 'unknown')}{ranks}. "
        "Wait until it has ended, end it, or name another --run-dir."
    )
