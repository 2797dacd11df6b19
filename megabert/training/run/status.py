"""``status.json``: how the run is doing, or how its last start ended, since launchers hide its exit code."""

import datetime
import os
import socket
import threading
import time
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from megabert.foundation.errors import EXIT_HOPELESS, EXIT_HUNG, CheckpointError, DataError, Echo
from megabert.foundation.json_files import read_json, to_json, write_json
from megabert.observability.logs import logger
from megabert.settings.command_line.failures import exit_code_of

if TYPE_CHECKING:
    from megabert.distributed.process_group import World

STATUS_NAME = "status.json"
Verdict = Literal["not started", "running", "stopped", "done", "failed"]
RETRIES_AFTER_HANGS = 3
"""How often a run that hangs is worth another start from the same checkpoint: the fourth hang in a row is final."""
_WAIT_FOR_MAIN_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Hangs:
    """How often the run has hung since it last wrote a checkpoint."""

    step: int | None = None
    """Step of the checkpoint that the hanging starts began with."""
    count: int = 0


@dataclass(frozen=True, kw_only=True)
class StatusRecord:
    """Content of ``status.json``."""

    status: Verdict = "not started"
    step: int | None = None
    """Step of the last checkpoint, or at which the run ended."""
    phase: int | None = None
    """Number of the phase, from 1."""
    exit_code: int | None = None
    """Exit code of the rank that ended the run; None while it runs."""
    error: str | None = None
    rank: int | None = None
    """Rank that the error comes from; only in the record of a failure."""
    hangs: Hangs = field(default_factory=Hangs)
    fork: str | None = None
    """RUN@STEP that the run is a fork of."""
    time: str | None = None
    """When this was written, in UTC."""
    host: str | None = None
    pid: int | None = None
    """Process that wrote this."""
    start: str | None = None
    """Name of this start of the program, alike on all ranks."""
    replaced_ops: tuple[str, ...] = ()
    """A sentence for each op whose kernel differs from its definition on a device of this start."""


def read_status(run_dir: Path) -> StatusRecord:
    """Return the record of a run; a file that is missing or damaged counts as "not started"."""
    try:
        return check_status(run_dir)
    except CheckpointError:
        return StatusRecord()


def check_status(run_dir: Path) -> StatusRecord:
    """Return the record of a run, to be shown; "not started" if there is none.

    Raises:
        CheckpointError: The file is damaged.
    """
    path = run_dir / STATUS_NAME
    if not path.exists():
        return StatusRecord()
    remedy = "The run writes it anew: remove it, or wait for the next checkpoint."
    return read_json(path, StatusRecord, remedy=remedy, error=CheckpointError)


class RunStatus:
    """Records how one start of a run goes. Rank 0 writes, or a rank that fails by itself.

    Nothing is written before ``open``, since a folder that is refused belongs to another run.
    """

    def __init__(self, run_dir: Path, world: "World", *, fork: str | None = None) -> None:
        """Name this start, alike on all ranks; every rank calls it. ``fork`` is where the run comes from."""
        self._run_dir, self._world = run_dir, world
        self._is_open = False
        self._writing = threading.Lock()  # the threads of checkpoints and watchdog write as well
        self._has_ended = False
        start = world.broadcast(uuid.uuid4().hex)
        self.record = StatusRecord(fork=fork, start=start, host=socket.gethostname(), pid=os.getpid())

    def open(self) -> None:
        """Allow writing: the folder holds this run, or nothing yet."""
        self._is_open = True
        # The step as well: hangs are counted since one checkpoint, and a start-up may hang before it has read that.
        earlier = read_status(self._run_dir)
        self.record = replace(self.record, step=earlier.step, phase=earlier.phase, hangs=earlier.hangs)

    def replaced(self, sentences: tuple[str, ...]) -> None:
        """Record the ops that run on another backend than the first choice; the next record has them."""
        self.record = replace(self.record, replaced_ops=sentences)

    def running(self, *, step: int, phase: int) -> None:
        """Record the step and phase of the newest checkpoint."""
        self.record = replace(self.record, step=step, phase=phase + 1)
        if self._world.is_main:
            self._write("running")

    def ended(self, exit_code: int, *, step: int, phase: int) -> None:
        """Record how this start ended in order."""
        self.record = replace(self.record, step=step, phase=phase + 1)
        if self._world.is_main:
            self._write("stopped" if exit_code else "done", exit_code=exit_code)

    def failed(self, error: BaseException) -> None:
        """Record an error, unless this start has recorded one: what other ranks report later follows from the first."""
        if isinstance(error, Echo) and not self._world.is_main:
            return
        if self._first_failure() is not None:
            return
        from megabert.distributed.failure_propagation import RankFailed  # torch, which a reader of status.json spares

        code = exit_code_of(error)
        text, rank = f"{type(error).__name__}: {error}", self._world.rank
        if isinstance(error, RankFailed):  # that rank could not write
            text, rank = str(error), error.rank
        self._write("failed", exit_code=code, error=text, rank=rank)

    def hung(self, message: str) -> int:
        """Record that the watchdog ends this rank, unless this start has recorded a failure; return the exit code.

        A hang is worth another try, because networks and file systems recover. After ``RETRIES_AFTER_HANGS`` of them
        from one checkpoint, the exit code ends the job: its script does not start the run again.
        """
        if not self._world.is_main:  # rank 0 writes, unless it cannot
            time.sleep(_WAIT_FOR_MAIN_S)
        first = self._first_failure()
        if first is not None:
            return first.exit_code or EXIT_HUNG
        if not self._is_open:  # the start-up hangs, and the folder has been found to be this run's
            self.open()
        # A newer checkpoint means progress, and the count begins again.
        record = self.record
        again = record.hangs.count if record.hangs.step == record.step else 0
        self.record = record = replace(record, hangs=Hangs(step=record.step, count=again + 1))
        code = EXIT_HUNG
        if again >= RETRIES_AFTER_HANGS:
            code = EXIT_HOPELESS
            message += (
                f", for the {again + 1}th time since the checkpoint of step {record.step}. Look for what all "
                "the stacks have in common; leave a bad node out (sbatch --exclude)"
            )
        self._write("failed", exit_code=code, error=message, rank=self._world.rank)
        return code

    def _first_failure(self) -> StatusRecord | None:
        """Return the failure that a rank of this start has recorded, or None."""
        record = read_status(self._run_dir)
        return record if record.status == "failed" and record.start == self.record.start else None

    def _write(
        self, verdict: Verdict, *, exit_code: int | None = None, error: str | None = None, rank: int | None = None
    ) -> None:
        """Write the record with a new verdict, unless the folder is not this run's."""
        if not self._is_open or not self._run_dir.is_dir():
            return
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        record = replace(self.record, status=verdict, exit_code=exit_code, error=error, rank=rank, time=now)
        content = {name: value for name, value in to_json(record).items() if name != "rank" or rank is not None}
        try:
            with self._writing:
                if verdict == "running" and self._has_ended:  # a checkpoint that was completed late
                    return
                self._has_ended = verdict != "running"
                write_json(self._run_dir / STATUS_NAME, content)
        except (OSError, DataError) as failure:  # a full disk must neither end a run nor hide what did
            logger.warning("%s was not written: %s", self._run_dir / STATUS_NAME, failure)
