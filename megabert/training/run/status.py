"""``status.json``: how a run stands, for those who cannot see its exit code; launchers hide it."""

import datetime
import json
import os
import socket
import threading
import time
import uuid
from pathlib import Path
from typing import Any, Literal

from megabert.distributed.failure_propagation import RankFailed
from megabert.distributed.process_group import World
from megabert.errors import EXIT_HOPELESS, EXIT_HUNG, EXIT_INTERRUPTED, DataError, Echo
from megabert.observability.logs import logger
from megabert.schema import atomic_write

STATUS_NAME = "status.json"
Verdict = Literal["running", "stopped", "done", "failed"]
MAX_HANGS_IN_A_ROW = 3
_WAIT_FOR_MAIN_S = 2.0


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

    def __init__(self, run_dir: Path, world: World, *, fork: str | None = None) -> None:
        """Name this start, alike on all ranks; every rank calls it. ``fork`` is where the run comes from."""
        self._run_dir, self._world, self._fork = run_dir, world, fork
        self._is_open = False
        self._writing = threading.Lock()  # the threads of checkpoints and watchdog write as well
        self._has_ended = False
        self._place: dict[str, int | None] = {"step": None, "phase": None}
        self._hangs: dict[str, Any] = {"step": None, "count": 0}
        self._start: str = world.broadcast(uuid.uuid4().hex)

    def open(self) -> None:
        """Allow writing: the folder was found to hold this run, or nothing."""
        self._is_open = True
        self._hangs = read_status(self._run_dir).get("hangs", self._hangs)

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
        if isinstance(error, Echo) and not self._world.is_main:
            return
        earlier = read_status(self._run_dir)
        if earlier.get("status") == "failed" and earlier.get("start") == self._start:
            return
        code = EXIT_INTERRUPTED if isinstance(error, KeyboardInterrupt) else getattr(error, "exit_code", 1)
        text, rank = f"{type(error).__name__}: {error}", self._world.rank
        if isinstance(error, RankFailed):  # that rank could not write
            text, rank = str(error), error.rank
        self._write("failed", exit_code=code, error=text, rank=rank)

    def hung(self, message: str) -> int:
        """Record that the watchdog ends this rank; return the exit code.

        After three returns to the same checkpoint the code is one that is not tried again.
        """
        again = self._hangs["count"] if self._hangs["step"] == self._place["step"] else 0
        self._hangs = {"step": self._place["step"], "count": again + 1}
        code = EXIT_HUNG
        if again >= MAX_HANGS_IN_A_ROW:
            code = EXIT_HOPELESS
            message += (
                f", for the {again + 1}th time since the checkpoint of step {self._place['step']}. Look for what all "
                "the stacks have in common; leave a bad node out (sbatch --exclude)"
            )
        if not self._world.is_main:  # rank 0 writes, unless it cannot
            time.sleep(_WAIT_FOR_MAIN_S)
            if read_status(self._run_dir).get("status") == "failed":
                return code
        self._write("failed", exit_code=code, error=message, rank=self._world.rank)
        return code

    def _write(self, verdict: Verdict, **more: Any) -> None:
        if not self._is_open or not self._run_dir.is_dir():
            return
        content = {
            "status": verdict,
            **self._place,
            "exit_code": None,
            "error": None,
            **more,
            "hangs": self._hangs,
            "fork": self._fork,
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "start": self._start,
        }
        try:
            with self._writing:
                if verdict == "running" and self._has_ended:
                    return
                self._has_ended = verdict != "running"
                atomic_write(self._run_dir / STATUS_NAME, json.dumps(content, indent=2) + "\n")
        except (OSError, DataError) as error:  # a full disk must neither end a run nor hide what did
            logger.warning("%s was not written: %s", self._run_dir / STATUS_NAME, error)
