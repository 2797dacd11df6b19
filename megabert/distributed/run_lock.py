"""The lock of a run folder: one writer at a time, orphans included.

Two runs that write into one folder would destroy it, and ranks of a killed run may still be writing. So the
lock has to be held by every rank of a run, also on other hosts, and to vanish with the last of them, however it ends.
The kernel's file locks (flock) do that: rank 0 takes the lock file exclusively, which fails as long as any other
process holds it; then all ranks hold it shared. The content of the file says who they are, for the message.
"""

import contextlib
import datetime
import fcntl
import json
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from megabert.distributed.process_group import World, run_on_all_ranks
from megabert.foundation.errors import CheckpointError, DataError
from megabert.foundation.files import open_lock, refuse_linked_folders, remove_killed_writes, try_lock
from megabert.foundation.json_files import parse_json, to_json

logger = logging.getLogger(__name__)

LOCK_NAME = ".lock"
FOLDERS = (
    "logs",
    "heartbeats",
    "tb",
    "wandb",
    "profile",
    "checkpoints",
    "checkpoints/*",
    "tokenizer",
    "seed_*",
    "seed_*/*",
)
"""Folders that a pre-training or a fine-tuning makes in its own."""
TEMPORARIES = (
    *(".*.json.*.tmp", ".*.yaml.*.tmp", ".metrics.jsonl.*.tmp", ".results.*.tmp", ".tokenizer.*.tmp"),
    "seed_*/.*.tmp",
)
"""Temporary files of a killed one. Pages and vectors are not among them: their commands take no lock."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Content of the lock file: who holds the folder, or who held it last."""

    host: str = "unknown"
    """Host of rank 0."""
    pid: int | str = "unknown"
    """Process of rank 0."""
    since: str = "unknown"
    """When the run started, in UTC."""
    ranks: tuple[tuple[str, int], ...] = ()
    """Host and process of every rank."""
    released: bool = False
    """Whether the run ended in order. If not, and nobody holds the lock, it was killed."""


class RunLock:
    """Context manager that holds a run folder for all ranks of a world."""

    def __init__(self, run_dir: Path, world: World) -> None:
        """Name the folder; it is created on entering."""
        self.run_dir = run_dir
        self.path = run_dir / LOCK_NAME
        self.world = world
        self._file: Any = None
        self._before: set[str] | None = None
        self._is_new_folder = False
        self._holder = Holder()

    def __enter__(self) -> "RunLock":
        """Take the lock; every rank calls it.

        Raises:
            CheckpointError: On every rank alike: another run holds it, or the folder cannot be written.
        """
        ranks = self.world.gather((socket.gethostname(), os.getpid()))
        try:
            run_on_all_ranks(self.world, lambda: self._try(self._take, ranks) if self.world.is_main else None)
            run_on_all_ranks(self.world, lambda: None if self.world.is_main else self._try(self._join))
        except BaseException:
            self._undo()
            self._close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        """Release the lock and note that, so that the next run does not call it stale.

        A start that was refused before it wrote anything leaves nothing: the folder may be another program's.
        """
        if exception[0] is not None:
            self._undo()
        if self.world.is_main and self._file is not None:
            with contextlib.suppress(OSError):  # a full disk must not hide the error that ended the run
                self._write(replace(self._holder, released=True))
        self._close()

    def _try(self, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except OSError as failure:
            why = f"cannot be written ({failure.strerror}). Name another folder."
            raise CheckpointError(f"{self.run_dir}: {why}") from failure

    def _take(self, ranks: list[tuple[str, int]]) -> None:
        """Take the lock for rank 0, and write who holds it."""
        self._is_new_folder = not self.run_dir.exists()
        self.run_dir.mkdir(parents=True, exist_ok=True)
        refuse_linked_folders(self.run_dir, FOLDERS)
        self._before = None if self.path.exists() else {LOCK_NAME, *os.listdir(self.run_dir)}
        # One descriptor for everything: over NFS, closing any other of this file would drop the lock.
        self._file = open_lock(self.path)
        previous = self._read()
        self._lock(fcntl.LOCK_EX, previous)
        if previous != Holder() and not previous.released:
            stale = "%s: taking over the stale lock of host %s, pid %s, from %s: that run ended without releasing it"
            logger.warning(stale, self.run_dir, previous.host, previous.pid, previous.since)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._holder = Holder(host=ranks[0][0], pid=ranks[0][1], since=now, ranks=tuple(ranks))
        self._write(self._holder)
        remove_killed_writes(self.run_dir, TEMPORARIES)
        # Going from exclusive to shared is not atomic: another run may take the lock in between, and then this one is
        # refused.
        self._lock(fcntl.LOCK_SH, Holder())

    def _join(self) -> None:
        """Take a share of the lock that rank 0 holds."""
        self._file = open_lock(self.path)
        self._lock(fcntl.LOCK_SH, self._read())

    def _lock(self, mode: int, holder: Holder) -> None:
        try:
            is_locked = try_lock(self._file, mode)
            if not self.path.exists() or not os.path.samestat(os.fstat(self._file.fileno()), self.path.stat()):
                raise BlockingIOError  # a start that was refused has just removed it
        except BlockingIOError:
            raise CheckpointError(_refusal(self.run_dir, holder), see="the-run-folder-is-in-use") from None
        if not is_locked:
            logger.warning("%s: this file system has no locks; do not start the same run twice", self.path)

    def _read(self) -> Holder:
        self._file.seek(0)
        try:
            return parse_json(self._file.read() or "{}", Holder, where=str(self.path), remedy="")
        except DataError:  # a torn record only makes a message less precise
            return Holder()

    def _write(self, holder: Holder) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._file.write(json.dumps(to_json(holder)) + "\n")
        self._file.flush()

    def _undo(self) -> None:
        """Remove the lock file, and the folder, if this start made them and nothing else there."""
        if self._before is None or {*os.listdir(self.run_dir)} != self._before:
            return
        with contextlib.suppress(OSError):
            self.path.unlink()
            if self._is_new_folder:
                self.run_dir.rmdir()

    def _close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None


def _refusal(run_dir: Path, holder: Holder) -> str:
    here = socket.gethostname()
    alive = [str(pid) for host, pid in holder.ranks if host == here and Path(f"/proc/{pid}").exists()]
    ranks = f"; ranks alive here: pids {', '.join(alive)}" if alive else ""
    who = f"host {holder.host}, pid {holder.pid}, since {holder.since}{ranks}"
    remedy = "Wait until it has ended, end it, or name another folder."
    return f"{run_dir}: another run holds this folder: {who}. {remedy}"
