"""The run folder: the configuration of a run, its changes when it is resumed, and its status.

``config.yaml`` holds the complete configuration. A field that the result depends on (a ``science`` field, see
``config.run``) cannot change any more, since a run folder holds one experiment. A field of ``FREE_ON_RESUME``, such as
the ZeRO stage or the logging interval, may change with every start. ``status.json`` says how the run is doing, since
launchers hide its exit code.
"""

import datetime
import os
import shlex
import socket
import sys
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from megabert.checkpoints.format import steps_in
from megabert.foundation.errors import EXIT_HOPELESS, EXIT_HUNG, CheckpointError, DataError, Echo
from megabert.foundation.files import atomic_write, is_temporary, open_to_append
from megabert.foundation.json_files import read_json, to_json, write_json
from megabert.foundation.remote_files import is_url
from megabert.observability.environment import describe_environment
from megabert.observability.logs import logger
from megabert.settings.command_line.failures import exit_code_of
from megabert.settings.config.loading import builds_read, differences, merge_layers, phase_data, to_dict, to_yaml
from megabert.settings.config.phase import PhaseConfig
from megabert.settings.config.run import RunConfig, is_science

CONFIG_NAME = "config.yaml"
ENVIRONMENT_NAME = "environment.json"


def checkpoints_dir(run_dir: Path) -> Path:
    """Return the folder of the run's checkpoints."""
    return run_dir / "checkpoints"


def tokenizer_dir(run_dir: Path) -> Path:
    """Return the run's copy of the tokenizer that its shards were made with."""
    return run_dir / "tokenizer"


def read_config(run_dir: Path) -> RunConfig:
    """Return the resolved configuration that a run recorded.

    Raises:
        CheckpointError: The folder is no run folder, or its configuration is lost.
    """
    path = run_dir / CONFIG_NAME
    if not path.is_file():
        refuse_lost_config(run_dir)
        raise CheckpointError(f"{run_dir}: has no {CONFIG_NAME}, so it is no run folder. Name one: runs/NAME.")
    return merge_layers(RunConfig, path)


def refuse_lost_config(run_dir: Path) -> None:
    """Refuse a folder without a configuration if it has checkpoints, and say how the configuration comes back.

    Raises:
        CheckpointError: It is such a folder.
    """
    path, copy = run_dir / CONFIG_NAME, checkpoints_dir(run_dir) / CONFIG_NAME
    steps = steps_in(checkpoints_dir(run_dir))
    if not steps:
        return
    backup = f"Copy it from a backup, or write it from the commands in {run_dir / 'command.txt'}."
    remedy = f"Copy it back: {shlex.join(['cp', str(copy), str(path)])}" if copy.is_file() else backup
    raise CheckpointError(f"{path}: is lost, and the run has checkpoints up to step {steps[0]}. {remedy}")


def with_found_data(run_dir: Path, config: RunConfig) -> RunConfig:
    """Return a run's configuration for a command in another folder; builds that no phase reads stay as they are.

    Raises:
        DataError: The configuration names data relative to a folder that is not known.
    """
    data, builds = config.data, {name: build for p in config.phases for name, build in builds_read(config, p).items()}
    read = {name: _found(run_dir, build, "instances") for name, build in builds.items()}
    cache = data.cache and str(_started_in(run_dir) / data.cache)
    sources = data.sources and {**data.sources, **read}
    data = replace(data, path=read.get("", data.path), sources=sources, cache=cache)
    phases = tuple(replace(phase, data=phase.data and _found(run_dir, phase.data)) for phase in config.phases)
    return replace(config, data=data, phases=phases)


def run_sources(run_dir: Path, config: RunConfig, phase: PhaseConfig) -> list[Path]:
    """Return the folders of a phase's shards, found as by `with_found_data`."""
    found = with_found_data(run_dir, replace(config, phases=(phase,)))
    return list(phase_data(found, found.phases[0]).values())


def _started_in(run_dir: Path) -> Path:
    """Return the folder that a run was started in; the current one if that is not known, or not of this machine."""
    with suppress(DataError):  # the record is missing or damaged
        folder = Path(str(read_json(run_dir / ENVIRONMENT_NAME, dict[str, Any], remedy="").get("folder", "")))
        return folder if folder.is_dir() else Path()
    return Path()


def _found(run_dir: Path, place: str, inside: str = "") -> str:
    """Return a folder of shards or a URL as it is seen from here; ``inside`` is what tells the folder from another."""
    if is_url(place):
        return place
    for folder in (Path(place), _started_in(run_dir) / place):
        if Path(place).is_absolute() or (folder / inside).exists():
            return str(folder)
    raise DataError(
        f"{place}: the shards of {run_dir} are not there, seen from {Path.cwd()}. Call this in the folder where the "
        "run was started, or copy the shards back.",
        see="there-are-no-shards",
    )


def changes_since(run_dir: Path, config: RunConfig) -> list[str]:
    """Return a line for every field in which a configuration differs from the one that a run recorded."""
    changed = differences(to_dict(read_config(run_dir)), to_dict(config))
    return [f"{path}: {old!r} -> {new!r}" for path, (old, new) in changed.items()]


def claim_run_folder(run_dir: Path, config: RunConfig) -> list[str]:
    """Check a run folder against the configuration, before anything is written.

    Args:
        run_dir: New, empty, or the folder of an earlier run.
        config: Resolved configuration.

    Returns:
        Lines that say which free fields changed since the last start; empty for a new run.

    Raises:
        CheckpointError: A science field differs, the folder holds something else, or its configuration is lost.
    """
    # A new folder, an empty one, or one that a start left before it wrote its configuration.
    if not run_dir.exists() or not any(path.name != ".lock" for path in run_dir.iterdir()):
        return []
    if not (run_dir / CONFIG_NAME).is_file():
        refuse_lost_config(run_dir)
        # From a start that was killed, or hung (then with a status), before it wrote its configuration.
        own = (".lock", "logs", "heartbeats", STATUS_NAME)
        if all(path.name in own or is_temporary(path) for path in run_dir.iterdir()):
            return []
        raise CheckpointError(
            f"{run_dir}: is not empty and has no {CONFIG_NAME}, so it is no run folder. Choose another --run-dir."
        )
    # A run folder: only fields that the result does not depend on may differ.
    changes = changes_since(run_dir, config)
    science = [change for change in changes if is_science(change.partition(":")[0])]
    if science:
        lines = "\n".join(f"  {change}" for change in science)
        raise CheckpointError(
            f"{run_dir}: was begun with another configuration; these fields make it another experiment:\n{lines}\n"
            f"Continue with the recorded values, or begin a new run with these, from a checkpoint of this one:\n"
            f"  {fork_command(run_dir)}",
            see="the-run-folder-holds-another-experiment",
        )
    return changes


def fork_command(run_dir: Path) -> str:
    """Return the beginning of the command that forks a run at its newest checkpoint."""
    step = next(iter(steps_in(checkpoints_dir(run_dir))), "STEP")
    return f"megabert pretrain --fork {shlex.quote(f'{run_dir}@{step}')} --run-dir NEW ..."


def record_run(run_dir: Path, config: RunConfig, deepspeed: dict[str, Any]) -> None:
    """Write configuration, command, environment and DeepSpeed dictionary into the run folder."""
    for folder in (run_dir, checkpoints_dir(run_dir)):  # checkpoints are worth nothing without it, so it is there twice
        atomic_write(folder / CONFIG_NAME, to_yaml(config))
    command = shlex.join([sys.executable, "-m", "megabert", *sys.argv[1:]])
    with open_to_append(run_dir / "command.txt") as file:  # a line is a start, so a line feed is written as in Bash
        file.write(command.replace("\n", r"'$'\n''") + "\n")
    write_json(run_dir / ENVIRONMENT_NAME, describe_environment())
    write_json(run_dir / "deepspeed.json", deepspeed)


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
        from one checkpoint, the exit code is one that job scripts do not try again.
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
