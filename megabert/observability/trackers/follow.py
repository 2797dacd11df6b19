"""The process of a tracker: it copies ``metrics.jsonl`` into the tracker's store, and follows it until the run ends.

It never stands in the way of the run, which only starts it and looks whether it still runs. The run has ended if stdin
is closed or the parent is gone, as after a SIGKILL. Then the last rows are sent within a minute, or this process is
ended.
"""

import fcntl
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from megabert.foundation.files import open_lock, open_to_read, read_small, try_lock
from megabert.observability.trackers.interface import leaves, shown_name
from megabert.observability.trackers.stores import STORES, Store, TrackedRun

POLL_S = 0.5
"""Seconds between two looks at the file."""
WAIT_S = 60
"""Seconds to wait for the process of a killed start, which still sends its last rows."""


class TrackerError(Exception):
    """A tracker reported a failure without raising an error."""


def follow_run() -> None:
    """Send the rows of a run until it ends; `TrackerProcess` passes the arguments."""
    name, run_dir, project, mode, finish_s, run_id = sys.argv[1:]
    # Signals that ask a job to stop reach this process too, and the rows of its last steps are still to come.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    is_over = threading.Event()
    threading.Thread(target=_watch, args=(is_over, int(finish_s)), daemon=True).start()
    folder = Path(run_dir)
    try:
        with open_lock(folder / "logs" / f"tracker_{name}.lock") as lock:
            _wait_for(lock)
            run = TrackedRun(
                name=folder.resolve().name,
                run_id=run_id,
                project=project,
                is_offline=mode == "offline",
                folder=folder.resolve(),
                config=_read_config(folder / "config.yaml"),
            )
            store = STORES[name](run)
            with warnings.catch_warnings(record=True) as reported:
                warnings.simplefilter("always", UserWarning)
                send(store, followed_rows(folder / "metrics.jsonl", is_over), reported)
    except ModuleNotFoundError as error:
        _end(f"{error.name} is not installed: pip install 'megabert[{name}]'")
    except BaseException as error:  # a library that calls sys.exit, too
        traceback.print_exc()
        _end(" ".join(f"{type(error).__name__}: {error}".split()))


def send(store: Store, rows: Iterator[dict[str, Any] | None], reported: list[warnings.WarningMessage]) -> None:
    """Send rows until they end; None stands for a look that found no further row.

    Raises:
        TrackerError: The store warned that it could not keep a row.
    """
    for row in rows:
        if row is not None and (values := flat(row)):
            store.log(row["step"], values)
        _raise_first(reported)
    store.finish()
    _raise_first(reported)


def followed_rows(path: Path, is_over: threading.Event) -> Iterator[dict[str, Any] | None]:
    """Yield the rows of a growing file, and None whenever it has no further one, until the run is over."""
    rest = b""
    with open_to_read(path) as file:
        while True:
            is_last = is_over.is_set()  # asked before reading: all that was written before the end is read
            *lines, rest = (rest + file.read()).split(b"\n")
            for line in lines:
                row = _row_of(line)
                if row is not None:
                    yield row
            yield None
            if is_last:
                return
            is_over.wait(POLL_S)


def flat(row: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of a row by the names that trackers show; a histogram has three: min, mean, max."""
    values: dict[str, float] = {}
    for tag, value in row.items():
        if isinstance(value, dict):
            values |= {f"{tag}/{part}": number for part, number in value.items()}
        elif tag != "step" and value is not None:
            values[shown_name(tag)] = value
    return values


def _row_of(line: bytes) -> dict[str, Any] | None:
    """Return a line's row; None if it is damaged, which `read_metrics` reports."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None


def _read_config(path: Path) -> dict[str, Any]:
    """Return the fields of the run's configuration by their paths."""
    fields = yaml.safe_load(read_small(path)) if path.exists() else {}
    return {name: value if isinstance(value, bool | int | float) else str(value) for name, value in leaves(fields)}


def _raise_first(reported: list[warnings.WarningMessage]) -> None:
    """Raise the first UserWarning of the library: trackio warns of rows that it could not write, and continues."""
    for warning in reported:  # another kind, such as a FutureWarning, says nothing about rows
        if issubclass(warning.category, UserWarning):
            raise TrackerError(str(warning.message))


def _wait_for(lock: Any) -> None:
    """Lock the tracker of this run folder: the process of a killed start may still write to the same store."""
    for _ in range(WAIT_S):
        try:
            try_lock(lock, fcntl.LOCK_EX)
            return
        except BlockingIOError:
            time.sleep(1)
    raise TrackerError(f"the process of an earlier start has held {lock.name} for {WAIT_S} seconds")


def _watch(is_over: threading.Event, finish_s: int) -> None:
    """Look for the end of the run, and then give this process a number of seconds, whatever its library does."""
    parent = os.getppid()
    while os.getppid() == parent and not select.select([sys.stdin], [], [], 1)[0]:
        pass
    is_over.set()
    signal.alarm(finish_s)  # its default action ends a process even if no Python code gets to run


def _end(reason: str) -> None:
    """End at once, with the reason in the last line of the log; the libraries' clean-up might wait for a network."""
    print(reason, flush=True)
    os._exit(1)
