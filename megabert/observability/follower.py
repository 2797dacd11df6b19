"""Copies a run's ``metrics.jsonl`` into trackio or wandb, as it grows; both are imported here alone.

A run has it done by a process of its own (`TrackerProcess`), so that nothing that a tracker's library does can delay or
end the run; ``megabert track`` does it by hand.

Every start sends the file from its first row. Offline, the rows of earlier starts are removed before: the store is a
copy of the file, without the steps that the run has dropped. Online, rows cannot be withdrawn: those after the last
step of the server are added.
"""

import fcntl
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import IO, Annotated, Any

import yaml
from pydantic import Field
from pydantic.dataclasses import dataclass

from megabert.foundation import files
from megabert.foundation.errors import ConfigError, DataError, MegabertError
from megabert.foundation.files import open_in_place, read_small
from megabert.foundation.json_files import read_json
from megabert.observability.logs import logger
from megabert.settings.config.run import LoggingConfig, TrackerName

Histogram = list[float]
Value = float | int | Histogram
COUNTERS = ("step", "phase", "phase_step")


def shown_name(tag: str) -> str:
    """Return the name of a tag in a tracker, which takes the part before the slash for a group."""
    return f"progress/{tag}" if tag in COUNTERS else tag


def leaves(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the fields of nested mappings by their paths; the items of a list are fields by their number."""
    for name, value in fields.items():
        inner = {str(i): item for i, item in enumerate(value)} if isinstance(value, list) else value
        if isinstance(inner, Mapping):
            yield from leaves(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", inner


def scalar_leaves(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of nested mappings as numbers and text, which trackers show next to the curves."""
    return {name: value if isinstance(value, bool | int | float) else str(value) for name, value in leaves(fields)}


POLL_S = 0.5
"""Seconds between two looks at the file."""
ORPHAN_S = 120
"""Seconds for the last rows if nobody waits for this process; the run itself waits for a shorter time."""
SPACE_BYTES = 64 << 10
"""More than wandb's service writes at once."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Content of ``trackers.json``."""

    run_id: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    """Name of the run in every tracker. It stays the same however often the run is resumed; a fork has its own."""


def follow_run(name: TrackerName, run_dir: Path, logging: LoggingConfig, is_over: Callable[[], bool]) -> None:
    """Send the rows of a run to a tracker until the run is over.

    Raises:
        ConfigError: The tracker's library is not installed, or a setting of it is missing.
        DataError: The library failed, or the disk is full.
    """
    try:
        with (
            files.open_lock(run_dir / "logs" / f"tracker_{name}.lock") as lock,
            warnings.catch_warnings(record=True) as said,
        ):
            warnings.simplefilter("always", UserWarning)
            with suppress(OSError):  # some file systems have no locks
                fcntl.flock(lock, fcntl.LOCK_EX)  # waits for the process of a killed start, which sends its last rows
            _copy(run_dir, *OPEN[name](run_dir, logging), said, is_over)
    except MegabertError:
        raise
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed: pip install 'megabert[{name}]'") from None
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        raise DataError(" ".join(f"{type(error).__name__}: {error}".split())) from None


def _copy(
    run_dir: Path, session: Any, first: int, said: list[warnings.WarningMessage], is_over: Callable[[], bool]
) -> None:
    """Send rows from step ``first`` on, until the run is over."""
    with files.open_to_read(run_dir / "metrics.jsonl") as file:
        is_last = False
        while not is_last:
            is_last = is_over()  # asked before reading: all that was written before the end is read
            for row in new_rows(file):
                if row["step"] >= first and (values := flat(row)):
                    session.log(values, step=row["step"])
            if is_last:
                session.finish()
            _raise_lost_rows(run_dir / "wandb", said)
            time.sleep(0 if is_last else POLL_S)


def _raise_lost_rows(folder: Path, said: list[warnings.WarningMessage]) -> None:
    """Raise an error if a library keeps no more rows, and continues: trackio warns, wandb's service is silent."""
    for warning in said:  # another kind, such as a FutureWarning, says nothing about rows
        if issubclass(warning.category, UserWarning):
            raise DataError(str(warning.message))
    if folder.exists():
        with files.under_way(folder / "space") as path:
            files.write_durably(path, bytes(SPACE_BYTES))


def new_rows(file: IO[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the rows that a file has grown by. Damaged lines are left out: `read_metrics` reports them."""
    while (line := file.readline()).endswith(b"\n"):
        with suppress(ValueError, RecursionError):
            row = json.loads(line)
            if isinstance(row, dict) and isinstance(row.get("step"), int):
                yield row
    file.seek(-len(line), os.SEEK_CUR)  # the run is in the middle of this line


def flat(row: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of a row by the names that trackers show; a histogram has three: min, mean, max."""
    values: dict[str, float] = {}
    for tag, value in row.items():
        if isinstance(value, dict):
            values |= {f"{tag}/{part}": number for part, number in value.items()}
        elif tag != "step" and value is not None:
            values[shown_name(tag)] = value
    return values


def run_id(run_dir: Path) -> str:
    """Return the name that a run has in trackers; the first call invents and records it."""
    path = run_dir / "trackers.json"
    if not path.exists():
        # The trackers of a run start together, and all take the name that the first of them writes.
        with files.open_lock(run_dir / "logs" / "trackers.lock") as lock:
            with suppress(OSError):  # some file systems have no locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                files.atomic_write(path, f'{{"run_id": "{secrets.token_hex(8)}"}}\n')
    remedy = "Remove it, and the next start begins another curve, with all rows."
    return read_json(path, Identity, remedy=remedy).run_id


def _open_trackio(run_dir: Path, logging: LoggingConfig) -> tuple[Any, int]:
    """Open the run in trackio's database, or on a Space or server; return it and the first step that it lacks."""
    name, places = run_id(run_dir), ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")
    is_offline = logging.tracker_mode == "offline"
    if not is_offline and not any(map(os.environ.get, places)):
        raise ConfigError("online needs TRACKIO_SPACE_ID (OWNER/NAME) or TRACKIO_SERVER_URL in the environment")
    if is_offline:
        for variable in places:  # these would send the rows elsewhere
            os.environ.pop(variable, None)
    trackio = import_module("trackio")
    if is_offline:
        with suppress(ValueError):  # the project does not exist yet
            for earlier in trackio.Api().runs(logging.tracker_project):
                if earlier.id == name:
                    earlier.delete()
    run = trackio.init(
        project=logging.tracker_project,
        name=f"{run_dir.resolve().name}-{name[:6]}",
        config=_config_of(run_dir),
        resume="never" if is_offline else "allow",
        embed=False,
        auto_log_cpu=False,
        auto_log_gpu=False,
    )
    if is_offline:
        run.id = name
    return run, 0 if is_offline else run._next_step


def _open_wandb(run_dir: Path, logging: LoggingConfig) -> tuple[Any, int]:
    """Open a session in wandb's log below ``RUN/wandb``, or on its server; return it and the first step it lacks."""
    name, is_offline = run_id(run_dir), logging.tracker_mode == "offline"
    wandb = import_module("wandb")
    for earlier in (run_dir / "wandb").glob(f"offline-run-*-{name}") if is_offline else ():
        files.remove_path(earlier)
    run = wandb.init(
        project=logging.tracker_project,
        id=name,
        name=run_dir.resolve().name,
        dir=str(run_dir.resolve()),
        config=_config_of(run_dir),
        mode=logging.tracker_mode,
        resume=None if is_offline else "allow",
        settings=wandb.Settings(
            console="off", silent=True, save_code=False, disable_git=True, x_disable_stats=True, x_disable_meta=True
        ),
    )
    return run, run.step


OPEN: dict[str, Callable[[Path, LoggingConfig], tuple[Any, int]]] = {"trackio": _open_trackio, "wandb": _open_wandb}


def _config_of(run_dir: Path) -> dict[str, Any]:
    path = run_dir / "config.yaml"
    return scalar_leaves(yaml.safe_load(files.read_small(path))) if path.exists() else {}


def follow_parent() -> None:
    """Follow the run that started this process (`TrackerProcess` passes the arguments) until it ends in any way."""
    name, run_dir, project, mode = sys.argv[1:]
    # Signals that ask a job to stop reach this process too, and the rows of its last steps are still to come.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    is_over = threading.Event()
    threading.Thread(target=_await_end, args=(is_over,), daemon=True).start()
    logging: Any = LoggingConfig(tracker_project=project, tracker_mode=mode)  # type: ignore[arg-type]
    try:
        follow_run(name, Path(run_dir), logging, is_over.is_set)  # type: ignore[arg-type]
    except BaseException as error:
        print(error, flush=True)  # the last line of the log is the reason
        os._exit(1)  # the libraries' clean-up might wait for a network


def _await_end(is_over: threading.Event) -> None:
    """Wait until stdin is closed or the parent is gone, as after a SIGKILL; then this process has `ORPHAN_S` left."""
    parent = os.getppid()
    while os.getppid() == parent and not select.select([sys.stdin], [], [], 1)[0]:
        pass
    is_over.set()
    signal.alarm(ORPHAN_S)  # its default action ends a process even if no Python code gets to run


FINISH_S = 60
"""Seconds that all processes get together for the last rows once the run has ended."""
KILLED_S = 5
"""Seconds to wait for a process that was sent SIGKILL."""
_PROGRAM = "import sys; sys.path[:] = {!r}; from megabert.observability.follower import follow_parent; follow_parent()"


class TrackerProcess:
    """Starts, watches and ends the process that sends the rows of a run. What fails there is one warning here."""

    def __init__(self, name: TrackerName, run_dir: Path, logging: LoggingConfig) -> None:
        """Start the process; ``metrics.jsonl`` holds the rows before the first step of this session."""
        self._name, self._run_dir = name, run_dir
        self._log = run_dir / "logs" / f"tracker_{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        words = [name, str(run_dir), logging.tracker_project, logging.tracker_mode]
        try:
            with os.fdopen(open_in_place(self._log, os.O_WRONLY | os.O_APPEND | os.O_TRUNC), "wb") as log:
                # A session of its own: Ctrl-C is for the run, and its process group can be ended as a whole.
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM.format(sys.path), *words],
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
