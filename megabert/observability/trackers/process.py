"""A tracker in a process of its own, so that nothing that its library does can delay or end a run."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic

from megabert.foundation.errors import DataError
from megabert.foundation.files import open_in_place, read_small
from megabert.observability.logs import logger
from megabert.settings.config.run import LoggingConfig, TrackerName

FINISH_S = 60
"""Seconds that all processes get together for the last rows once the run has ended."""
KILLED_S = 5
"""Seconds to wait for a process that was sent SIGKILL."""
_PROGRAM = "import sys; sys.path[:] = {path!r}; from {module} import follow_parent; follow_parent()"


class TrackerProcess:
    """Starts, watches and ends the process that sends the rows of a run. What fails there is one warning here."""

    def __init__(self, name: TrackerName, run_dir: Path, logging: LoggingConfig) -> None:
        """Start the process; ``metrics.jsonl`` holds the rows before the first step of this session."""
        self._name, self._run_dir = name, run_dir
        self._log = run_dir / "logs" / f"tracker_{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        program = _PROGRAM.format(path=sys.path, module="megabert.observability.trackers.follower")
        words = [name, str(run_dir), logging.tracker_project, logging.tracker_mode]
        try:
            with os.fdopen(open_in_place(self._log, os.O_WRONLY | os.O_APPEND | os.O_TRUNC), "wb") as log:
                # A session of its own: Ctrl-C is for the run, and its process group can be ended as a whole.
                self._process = subprocess.Popen(
                    [sys.executable, "-c", program, *words],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except (OSError, DataError) as error:
            self._give_up(str(error))

    def check(self) -> None:
        """Look whether the process still runs."""
        if self._process is not None and (code := self._process.poll()) is not None:
            self._give_up(self._reason(code))

    def end(self) -> None:
        """Close the stdin of the process, the sign that the run has ended."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()

    def wait(self, deadline: float) -> None:
        """Wait for the last rows until a moment of `monotonic`, and then kill the process."""
        if self._process is None:
            return
        try:
            code = self._process.wait(max(0.0, deadline - monotonic()))
        except subprocess.TimeoutExpired:
            self._give_up(f"did not take the last rows within {FINISH_S} seconds")
        else:
            if code:
                self._give_up(self._reason(code))

    def _give_up(self, reason: str) -> None:
        """Warn once that the tracker has failed, and leave nothing of it running."""
        logger.warning(
            "%s: %s. The run continues without it; %s has every row, and the next start sends them. Its log: %s",
            *(self._name, reason.rstrip("."), self._run_dir / "metrics.jsonl", self._log),
        )
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):  # on a file system that hangs it does not even end then
                process.wait(KILLED_S)

    def _reason(self, code: int) -> str:
        """Return why the process ended: a signal, or the last line of its log."""
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        with suppress(OSError, DataError):
            lines = read_small(self._log).decode("utf-8", "replace").split("\n")
            return next((line.strip() for line in reversed(lines) if line.strip()), "ended without a word")
        return "ended, and its log cannot be read"


def finish(trackers: Sequence[TrackerProcess]) -> None:
    """End trackers at the end of a run: they send their last rows at the same time."""
    deadline = monotonic() + FINISH_S
    for tracker in trackers:
        tracker.end()
    for tracker in trackers:
        tracker.wait(deadline)
