"""Logging of one rank: everything to ``logs/rank_NNN.log``, and messages for the user to stderr.

stderr carries our own messages: all of rank 0, warnings and worse of the others. The libraries' messages
(DeepSpeed's set-up, Python's warnings) are in the file, which helps when something goes wrong; their errors are on
stderr, too.
"""

import contextlib
import faulthandler
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tqdm import tqdm

from megabert.foundation.files import open_to_append
from megabert.settings.command_line.terminal import unfiltered

logger = logging.getLogger("megabert")

_LIBRARIES = ("DeepSpeed", "py.warnings")
"""Loggers of others; Python's warnings are one of them while they are captured."""


def log_to_stderr(rank: int) -> None:
    """Send this rank's messages to stderr: all of rank 0, warnings and worse of the others."""
    logger.setLevel(logging.DEBUG)
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
    before = []
    logging.captureWarnings(True)
    for library in map(logging.getLogger, _LIBRARIES):
        before.append((library, library.level, library.propagate, library.handlers))
        library.setLevel(logging.INFO)
        library.propagate = False
        library.handlers = [file, errors]
    try:
        yield
    finally:
        logging.captureWarnings(False)
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


class _LogFile(logging.StreamHandler[IO[str]]):
    """A log that waits for space on a full disk, and shows no traceback for each message."""

    def close(self) -> None:
        super().close()
        self.stream.close()

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)
