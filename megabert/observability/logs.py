"""Logging of one rank: everything to ``logs/rank_NNN.log``, and messages and progress for the user to stderr.

stderr carries our own messages: all of rank 0, warnings and worse of the others. The libraries' messages
(DeepSpeed's set-up, Python's warnings) are in the file, which helps when something goes wrong; their errors are on
stderr, too.
"""

import contextlib
import faulthandler
import logging
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self

from tqdm import tqdm

from megabert.foundation.files import open_to_append
from megabert.foundation.text_tables import span
from megabert.settings.command_line.terminal import printable, unfiltered
from megabert.settings.config.run import RunConfig

logger = logging.getLogger("megabert")

_LIBRARIES = ("DeepSpeed", "py.warnings")
"""Loggers of others; Python's warnings are one of them while they are captured."""
_is_quiet = False


@contextmanager
def quiet(*, unless: bool = False) -> Iterator[None]:
    """Show nothing within this context, and give the caller's logging back after it.

    Messages go to the log of the run, and to the caller's own handlers from the level on that the caller has set.

    Args:
        unless: Leave it to `log_to_stderr` to show messages, as a command does.
    """
    global _is_quiet
    before = _is_quiet, logger.level, logger.propagate, logger.handlers
    if unless:
        _is_quiet, logger.handlers = False, [*logger.handlers]
    else:
        _is_quiet, logger.handlers, logger.propagate = True, [_Caller()], False
    try:
        yield
    finally:
        _is_quiet, level, logger.propagate, logger.handlers = before
        logger.setLevel(level)


def log_to_stderr(rank: int) -> None:
    """Send this rank's messages to stderr, unless they are `quiet`: all of rank 0, warnings and worse of the others."""
    logger.setLevel(logging.DEBUG)
    if _is_quiet:
        return
    logger.propagate = False
    logger.handlers.clear()
    handler = _Terminal()
    handler.setLevel(logging.INFO if rank == 0 else logging.WARNING)
    handler.setFormatter(logging.Formatter("%(message)s" if rank == 0 else f"[rank {rank}] %(message)s"))
    logger.addHandler(handler)


def log_path(run_dir: Path, rank: int) -> Path:
    """Return the log of a rank."""
    return run_dir / "logs" / f"rank_{rank:03d}.log"


@contextmanager
def logging_to_file(run_dir: Path, rank: int) -> Iterator[None]:
    """Also append this rank's messages, with times, and the libraries' to its file in the run folder.

    So are the stacks if the process crashes (a fault of memory, a mapped file that cannot be read).
    """
    handler = _LogFile(open_to_append(log_path(run_dir, rank)))
    shows_stacks = not faulthandler.is_enabled()  # else somebody wants them elsewhere
    if shows_stacks:
        faulthandler.enable(handler.stream)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    try:
        with _libraries_to(handler):
            yield
    finally:
        if shows_stacks:
            faulthandler.disable()
        logger.removeHandler(handler)
        with contextlib.suppress(OSError):
            handler.close()


@contextmanager
def _libraries_to(file: logging.Handler) -> Iterator[None]:
    """Send the libraries' messages to a file, and their errors to stderr as well."""
    errors = _Terminal()
    errors.setLevel(logging.ERROR)
    errors.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    before, showing = [], warnings.showwarning
    logging.captureWarnings(True)
    was_captured = warnings.showwarning is showing  # by the caller
    for library in map(logging.getLogger, _LIBRARIES):
        before.append((library, library.level, library.propagate, library.handlers))
        library.setLevel(logging.INFO)
        library.propagate = False
        library.handlers = [file, errors]
    try:
        yield
    finally:
        logging.captureWarnings(was_captured)
        for library, level, propagate, handlers in before:
            library.setLevel(level)
            library.propagate, library.handlers = propagate, handlers


class _Terminal(logging.Handler):
    """Writes lines to stderr, above a progress bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            with tqdm.external_write_mode(file=unfiltered(sys.stderr)):
                print(self.format(record), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


class _Caller(logging.Handler):
    """Passes messages on as the logger would by its present settings."""

    def __init__(self) -> None:
        super().__init__(logger.getEffectiveLevel())
        self._logger = logging.Logger(logger.name)
        self._logger.handlers = [handler for handler in logger.handlers if not isinstance(handler, _Terminal)]
        self._logger.parent, self._logger.propagate = logger.parent, logger.propagate

    def emit(self, record: logging.LogRecord) -> None:
        if self._logger.hasHandlers():  # without one, Python would show warnings
            self._logger.callHandlers(record)


class _LogFile(logging.StreamHandler[IO[str]]):
    """A log that waits for space on a full disk, and shows no traceback for each message."""

    def close(self) -> None:
        super().close()
        self.stream.close()

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


QUIET_S = 20.0
"""Between two lines of work that reports nothing itself."""


class Progress:
    """Counts finished units, such as steps of a phase or examples of a file, at rank 0; silent on the other ranks."""

    def __init__(self, *, title: str, total: int, done: int = 0, unit: str = "step", is_main: bool = True) -> None:
        """Start at ``done`` of ``total`` units."""
        self._title, self._total, self._unit, self._is_main = title, total, unit, is_main
        self._first = self._done = done
        self._start = self._shown = time.monotonic()
        self._bar: tqdm[Any] | None = None
        if is_main and sys.stderr.isatty() and not _is_quiet:
            file, title = unfiltered(sys.stderr), printable(title)
            # A bar inside another one vanishes when it is done (leave=None).
            self._bar = tqdm(
                desc=title, initial=done, total=total, unit=unit, dynamic_ncols=True, leave=None, file=file
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the bar."""
        if self._bar is not None:
            self._bar.close()

    def advance(self, count: int = 1, *, is_reported: bool = True) -> None:
        """Count finished units.

        Args:
            count: How many units.
            is_reported: Whether the caller calls `report` by itself; if not, a line is logged now and then.
        """
        self._done = min(self._done + count, self._total)
        if self._bar is not None:
            self._bar.update(count)
        now = time.monotonic()
        if not is_reported and now - self._shown >= QUIET_S:
            rate = (self._done - self._first) / max(now - self._start, 1e-9)
            left_s = (self._total - self._done) / rate
            self.report(self._done, f"{rate:,.0f} {self._unit}s/s", left_s=left_s)

    def report(self, done: int, text: str, *, left_s: float | None = None) -> None:
        """Show the interval's figures; the log file has a line of them in either case.

        Args:
            done: Units that are done.
            text: The figures.
            left_s: Seconds that are left of the whole work, if that is known.
        """
        self._shown = time.monotonic()
        texts = [text] if left_s is None else [text, f"{span(left_s)} left"]
        if self._bar is not None:
            self._bar.set_postfix_str(", ".join(reversed(texts)))  # a narrow terminal cuts the end
        if self._is_main:
            level = logging.INFO if self._bar is None else logging.DEBUG
            where = f"{self._title} {self._unit} {done:,}/{self._total:,} ({100 * done // max(self._total, 1)}%)"
            logger.log(level, "%s: %s", where, ", ".join(texts))


def seconds_left(config: RunConfig, index: int, phase_step: int, sequences_per_s: float) -> float:
    """Return the seconds that a run's remaining steps take, a later phase being slower in proportion to its length.

    Args:
        config: The run.
        index: Number of the present phase.
        phase_step: Its steps that are made.
        sequences_per_s: Rate of the present phase.
    """
    present = config.phases[index]
    left = (present.num_instances - present.instances_of(phase_step)) / sequences_per_s
    for phase in config.phases[index + 1 :]:
        left += phase.num_instances / sequences_per_s * phase.max_seq_length / present.max_seq_length
    return left


def pace(per_s: float) -> str:
    """Return a rate with two digits below ten: half a sequence per second is not none."""
    return f"{per_s:.2g}" if per_s < 10 else f"{per_s:,.0f}"
