"""``status.json``: how a run stands, for those who cannot see its exit code; launchers hide it."""

import datetime
import json
import os
import socket
import uuid
from pathlib import Path
from typing import Any, Literal

from megabert.distributed.process_group import World
from megabert.errors import DataError, MegabertError
from megabert.observability.logs import logger
from megabert.schema import atomic_write

STATUS_NAME = "status.json"
Verdict = Literal["running", "stopped", "done", "failed"]
_INTERRUPTED = 130


def read_status(run_dir: Path) -> dict[str, Any]:
    """Return the verdict that a run recorded; empty where there is none yet."""
    try:
        return json.loads((run_dir / STATUS_NAME).read_text(encoding="utf-8"))  # type: ignore[no-any-return]
    except (OSError, ValueError):
        return {}


class RunStatus:
    """Writes how one start of a run goes: rank 0, or a rank that fails by itself.

    Nothing is written before ``open``: a folder that was refused is somebody else's.
    """

    def __init__(self, run_dir: Path, world: World) -> None:
        """Name this start, alike on all ranks; every rank calls it."""
        self._run_dir, self._world = run_dir, world
        self._is_open = False
        self._place: dict[str, int | None] = {"step": None, "phase": None}
        self._start: str = world.broadcast(uuid.uuid4().hex)

    def open(self) -> None:
        """Allow writing: the folder was found to hold this run, or nothing."""
        self._is_open = True

    def running(self, *, step: int, phase: int) -> None:
        """Record where the run stands."""
        self._place = {"step": step, "phase": phase + 1}
        if self._world.is_main:
            self._write("running")

    def ended(self, verdict: Verdict, *, step: int, phase: int, exit_code: int) -> None:
        """Record how this start ended in order."""
        self._place = {"step": step, "phase": phase + 1}
        if self._world.is_main:
            self._write(verdict, exit_code=exit_code)

    def failed(self, error: BaseException) -> None:
        """Record an error; the first one stands, since what other ranks report later follows from it."""
        is_ours = isinstance(error, MegabertError)
        if is_ours and error.is_echo and not self._world.is_main:
            return
        earlier = read_status(self._run_dir)
        if earlier.get("status") == "failed" and earlier.get("start") == self._start:
            return
        code = error.exit_code if is_ours else _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
        self._write("failed", exit_code=code, error=f"{type(error).__name__}: {error}", rank=self._world.rank)

    def _write(self, verdict: Verdict, **more: Any) -> None:
        if not self._is_open or not self._run_dir.is_dir():
            return
        content = {
            "status": verdict,
            **self._place,
            "exit_code": None,
            "error": None,
            **more,
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "start": self._start,
        }
        try:
            atomic_write(self._run_dir / STATUS_NAME, json.dumps(content, indent=2) + "\n")
        except (OSError, DataError) as error:  # a full disk must neither end a run nor hide what did
            logger.warning("%s was not written: %s", self._run_dir / STATUS_NAME, error)
