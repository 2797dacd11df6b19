"""Loops over numpy arrays, compiled to machine code at first use and kept on disk; the one home of `numba`.

Kernels live in files named ``*_loops.py`` and are imported where they are called, so that a command
that needs none does not wait for the compiler. They hold scalars and loops, and no floating-point
arithmetic that rounds, so every machine computes the same bytes, compiled just now or taken from the disk.
"""

import fcntl
import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core import config
from numba.core.caching import FunctionCache

logger = logging.getLogger(__name__)

_ROOT = Path(__file__).parents[1]
SOURCES = ("*_loops.py", "keyed.py", "pairs.py", "backend.py")
"""Files with kernels, and with the constants and functions that they freeze."""


def _cache_folder() -> Path | None:
    """Return where machine code is kept: in the user's cache, by the text of all kernels; None if not writable.

    numba tells stale code by the time of the file that defines a kernel, not of those that it calls into.
    """
    digest = hashlib.sha256(numba.__version__.encode())
    for package in ("megabert", "data_prep"):
        for path in sorted(path for pattern in SOURCES for path in (_ROOT / package).rglob(pattern)):
            digest.update(path.read_bytes())
    try:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
        folder = root / "megabert" / f"kernels-{digest.hexdigest()[:16]}"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # a user without a home folder
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None


def _is_cached() -> bool:
    # Set by the user's NUMBA_CACHE_DIR; it wins.
    if config.CACHE_DIR:  # type: ignore[attr-defined]
        return True
    folder = _cache_folder()
    if folder is not None:
        config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]
    return folder is not None


_IS_CACHED = _is_cached()


class _Cache(FunctionCache):
    """numba's, for processes that fill it at the same time and for a disk that is full."""

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep machine code; where that fails this process still has it."""
        try:
            Path(self.cache_path).mkdir(parents=True, exist_ok=True)
            with open(Path(self.cache_path) / "lock", "wb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # else two signatures may be given one file name
                super().save_overload(sig, data)
        except OSError as error:
            logger.warning("%s: compiled kernels cannot be kept (%s)", self.cache_path, error.strerror or error)
            self.disable()


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function of scalars and arrays; it runs without the interpreter's lock.

    Where the user's cache cannot be written each process compiles for itself, which takes seconds.
    """
    kernel: Any = numba.njit(nogil=True)(function)
    if _IS_CACHED:
        kernel._cache = _Cache(function)
    return kernel


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a small function that only kernels call."""
    return numba.njit(nogil=True)(function)
