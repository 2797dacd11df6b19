"""A tracker in a process of its own, so that nothing that its library does can delay or end a run.

The process (``follow.py``) reads ``metrics.jsonl`` from the beginning and then row by row as it grows. So the store of
a tracker is a copy of that file: a resumed run sends rows that a killed process did not, and rows that the run has
dropped, because it resumed at a checkpoint before them, are dropped there as well.
"""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Annotated

from pydantic import Field

from megabert.foundation.errors import DataError
from megabert.foundation.files import atomic_write, open_in_place, read_small
from megabert.foundation.json_files import read_json
from megabert.observability.logs import logger
from megabert.observability.trackers.interface import Tracker, Value
from megabert.settings.config.run import LoggingConfig, TrackerName

FINISH_S = 60
"""Seconds that a process gets for the last rows once the run has ended."""
KILLED_S = 5
"""Seconds to wait for a process that was sent SIGKILL."""
IDENTITY_NAME = "trackers.json"
_PROGRAM = (
    "import sys; sys.path[:] = {path!r}; from megabert.observability.trackers.follow import follow_run; follow_run()"
)


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Content of ``trackers.json``."""

    run_id: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    """Name of the run in every tracker. It stays the same however often the run is resumed; a fork has its own."""


class TrackerProcess(Tracker):
    """Starts, watches and ends the process that sends the rows of a run. What fails there is one warning here."""

    def __init__(self, name: TrackerName, run_dir: Path, config: LoggingConfig) -> None:
        """Start the process; ``metrics.jsonl`` holds the rows before the first step of this session."""
        self._name, self._run_dir = name, run_dir
        self._log = run_dir / "logs" / f"tracker_{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._deadline: float | None = None  # of the last rows
        self._said_before = 0  # bytes of the log that earlier starts wrote
        words = [
            _PROGRAM.format(path=sys.path),
            name,
            str(run_dir),
            config.tracker_project,
            config.tracker_mode,
            str(FINISH_S),
        ]
        try:
            words.append(run_id(run_dir))
            log = open_in_place(self._log, os.O_WRONLY | os.O_APPEND)
            self._said_before = os.fstat(log).st_size
            try:
                # A session of its own: Ctrl-C is for the run, and its process group can be ended as a whole.
                self._process = subprocess.Popen(
                    [sys.executable, "-c", *words],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            finally:
                os.close(log)
        except (OSError, DataError) as error:
            self._give_up(str(error))
        else:
            logger.info(
                "%s (%s): %s",
                name,
                config.tracker_mode,
                _VIEWS[name, config.tracker_mode].format(run_dir, config.tracker_project),
            )

    def note(self, title: str, lines: Sequence[str], step: int) -> None:
        """Do nothing: the configuration and the rows are all that is sent."""

    def write(self, step: int, values: Mapping[str, Value]) -> None:
        """Look whether the process still runs; it takes the row from the file."""
        if self._process is not None and self._process.poll() is not None:
            self._give_up(self._reason(self._process.returncode))

    def flush(self) -> None:
        """Do nothing: the file is the buffer."""

    def end(self) -> None:
        """Close the stdin of the process, the sign that the run has ended."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        self._deadline = monotonic() + FINISH_S + 2

    def close(self) -> None:
        """Wait for the last rows, which the process began to send at `end`, and kill it if that takes too long."""
        if self._deadline is None:
            self.end()
        if self._process is None or self._deadline is None:
            return
        try:
            if code := self._process.wait(max(0.0, self._deadline - monotonic())):
                self._give_up(self._reason(code))
        except subprocess.TimeoutExpired:
            self._give_up(self._reason(-signal.SIGALRM))
        self._process = None

    def _give_up(self, reason: str) -> None:
        """Say once that the tracker has failed, and see to it that nothing of it is left."""
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
        if code == -signal.SIGALRM:
            return f"did not take the last rows within {FINISH_S} seconds"
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        with suppress(OSError, DataError):
            lines = read_small(self._log)[self._said_before :].decode("utf-8", "replace").split("\n")
            return next((line.strip() for line in reversed(lines) if line.strip()), "ended without a word")
        return "ended, and its log cannot be read"


_VIEWS = {
    ("trackio", "offline"): "trackio show --project {1}",
    ("trackio", "online"): "the Space or server of TRACKIO_SPACE_ID or TRACKIO_SERVER_URL, project {1}",
    ("wandb", "offline"): "wandb sync {0}/wandb/latest-run, once the run has ended",
    ("wandb", "online"): "project {1} of the account that wandb login named",
}


def run_id(run_dir: Path) -> str:
    """Return the name that a run has in trackers; the first call invents and records it.

    Raises:
        OSError: It cannot be written.
        DataError: The record is damaged.
    """
    path = run_dir / IDENTITY_NAME
    if not path.exists():
        atomic_write(path, f'{{"run_id": "{secrets.token_hex(8)}"}}\n')
    remedy = "Remove it, and the next start begins another curve, with all rows."
    return read_json(path, Identity, remedy=remedy).run_id
