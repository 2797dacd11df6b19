"""Logging of one rank: everything to ``logs/rank_NNN.log``, rank 0 also to stderr."""

import contextlib
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

logger = logging.getLogger("megabert")


def log_to_stderr(rank: int) -> None:
    """Send this rank's messages to stderr: all of rank 0, warnings and worse of the others."""
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.handlers.clear()
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.INFO if rank == 0 else logging.WARNING)
    handler.setFormatter(logging.Formatter("%(message)s" if rank == 0 else f"[rank {rank}] %(message)s"))
    logger.addHandler(handler)


def log_path(run_dir: Path, rank: int) -> Path:
    """Return the log of a rank."""
    return run_dir / "logs" / f"rank_{rank:03d}.log"


@contextmanager
def logging_to_file(run_dir: Path, rank: int) -> Iterator[None]:
    """Also append this rank's messages, with times, to its file in the run folder."""
    path = log_path(run_dir, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = _LogFile(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        with contextlib.suppress(OSError):
            handler.close()


class _LogFile(logging.FileHandler):
    """A log that keeps what a full disk does not take, in place of a traceback a message."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)
