"""Loops over numpy arrays, compiled to machine code at first use and kept on disk; the one home of `numba`.

Loops are in files named ``*_loops.py``, which are imported where they are called, so that a command that needs none
does not wait for the compiler. They hold scalars and loops, and no floating-point arithmetic that rounds, so every
machine computes the same bytes, compiled just now or taken from the disk.

They take their arguments by name, as a `typing.NamedTuple` of arrays. A loop reads the fields into locals before it
starts: numba counts references of an array that is still in its tuple each time the loop touches it.
"""

import hashlib
import importlib
import logging
import os
import pickle
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
from filelock import FileLock, Timeout
from numba.core import config
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.extending import register_jitable
from numba.np import linalg

from megabert.loops_compiler import compile_elsewhere, is_compiler

logger = logging.getLogger(__name__)

COMPILE_S = 120.0
"""How long a process waits for another one that has a loop compiled, before it compiles the loop itself."""
_LOOK_S = 0.5
"""How often it looks meanwhile whether the loop is there."""
_ROOT = Path(__file__).parents[1]
_OUR_IMPORT = re.compile(r"^\s*from ((?:megabert|data_prep)[\w.]*) import", re.MULTILINE)


def _import_without_blas() -> None:
    """Import numba's array functions as where there is no BLAS, which it needs for products of matrices only.

    No loop has one. numba would import scipy's linear algebra for it at the first loop, a quarter of a second in each
    process.
    """

    def ensure_blas() -> None:
        raise ImportError

    linalg.ensure_blas, found = ensure_blas, linalg.ensure_blas
    try:
        importlib.import_module("numba.np.arraymath")
    finally:
        linalg.ensure_blas = found


_import_without_blas()


def frozen_files() -> list[Path]:
    """Return the files that machine code is made from: all loops, and what they import of ours, directly or not.

    A loop freezes the constants and functions of other files, but numba compiles it again only where its own file
    changed.
    """
    waiting = [path for package in ("megabert", "data_prep") for path in (_ROOT / package).rglob("*_loops.py")]
    files: set[Path] = set()
    # Follow imports from file to file. They are read from the text: importing the modules here would be circular.
    while waiting:
        path = waiting.pop()
        if path in files:
            continue
        files.add(path)
        modules = (_ROOT.joinpath(*name.split(".")) for name in _OUR_IMPORT.findall(path.read_text(encoding="utf-8")))
        waiting += [module / "__init__.py" if module.is_dir() else module.with_suffix(".py") for module in modules]
    return sorted(files)


def _cache_folder() -> Path | None:
    """Return where machine code is kept, by the text that it is made from; None where nothing can be written.

    It is in the user's cache or, where that is set, in ``NUMBA_CACHE_DIR``.
    """
    # A folder for each text: an old folder is never wrong, only unused, so two versions can share a home.
    digest = hashlib.sha256(numba.__version__.encode())
    for path in frozen_files():
        digest.update(path.read_bytes())
    try:
        user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "megabert"
        folder = Path(config.CACHE_DIR or user_cache) / f"loops-{digest.hexdigest()[:16]}"  # type: ignore[attr-defined]
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # a RuntimeError: the user has no home folder
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None


_FOLDER = _cache_folder()
if _FOLDER is not None:
    config.CACHE_DIR = str(_FOLDER)  # type: ignore[attr-defined]


class _CacheFiles(IndexDataCacheFile):
    """A loop's index and machine code, each followed by its SHA-256: damaged code would end the process, or compute
    something else. What is damaged is compiled anew.
    """

    def load(self, key: Any) -> Any:
        """Return the machine code of a signature; None where there is none that can be used."""
        try:
            return super().load(key)
        except Exception as error:  # pickle raises nearly any
            logger.warning("%s: damaged, so its loops are compiled anew (%s)", self._index_path, error)
            with suppress(OSError):
                self.flush()
            return None

    def _dump(self, obj: Any) -> bytes:
        data: bytes = super()._dump(obj)
        return data + hashlib.sha256(data).digest()

    def _load_index(self) -> Any:
        with suppress(FileNotFoundError), open(self._index_path, "rb") as file:
            pickle.load(file)  # numba's version, which it writes before what it dumps
            _verified(file.read())
        return super()._load_index()

    def _load_data(self, name: str) -> Any:
        return pickle.loads(_verified(Path(self._data_path(name)).read_bytes()))


def _verified(content: bytes) -> bytes:
    """Return what is before the SHA-256 at the end of a file.

    Raises:
        ValueError: It is not that of what is before it.
    """
    size = hashlib.sha256().digest_size
    data, digest = content[:-size], content[-size:]
    if hashlib.sha256(data).digest() != digest:
        raise ValueError("another SHA-256")
    return data


class _Cache(FunctionCache):
    """numba's own cache, made safe for processes that fill it at the same time and for a full disk.

    numba reads its index, picks a free file name and writes both, without a lock: two processes that compile one loop
    for two types may give both the same file, and a third then runs code for the wrong type.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file = _CacheFiles(
            cache_path=self._cache_path,
            filename_base=self._impl.filename_base,
            source_stamp=self._impl.locator.get_source_stamp(),
        )

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return machine code from the disk; what is not there is compiled by a process of its own first."""
        code = super().load_overload(sig, target_context)
        if code is None and not is_compiler():
            deadline = time.monotonic() + COMPILE_S
            with suppress(OSError):  # then this process compiles it
                Path(self.cache_path).mkdir(parents=True, exist_ok=True)
                lock = FileLock(Path(self.cache_path) / "compiling")
                while code is None and time.monotonic() < deadline:
                    # Of several processes that need the loop, one has it compiled. The others take it from the disk as
                    # soon as it is there, all at once: each needs a quarter of a second for its first one.
                    with suppress(Timeout), lock.acquire(timeout=_LOOK_S):
                        code = super().load_overload(sig, target_context)
                        if code is None:
                            compile_elsewhere(self._py_func, sig)
                            code = super().load_overload(sig, target_context)
                        break
                    code = super().load_overload(sig, target_context)
        return code

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep machine code; where that fails, this process still has it."""
        try:
            Path(self.cache_path).mkdir(parents=True, exist_ok=True)
            with FileLock(Path(self.cache_path) / "lock"):
                super().save_overload(sig, data)
        except OSError as error:
            logger.warning("%s: compiled loops cannot be kept (%s)", self.cache_path, error.strerror or error)
            self.disable()


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function of scalars and arrays; it runs without the interpreter's lock.

    Where the cache cannot be written each process compiles for itself, which takes seconds.
    """
    loop: Any = numba.njit(nogil=True)(function)
    if _FOLDER is not None:
        loop._cache = _Cache(function)  # numba has no public way to say this
    return loop


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a small function that only loops call, as a part of each of them.

    numba pastes it in: called, it would count each array that it is given as used and unused again.
    """
    return numba.njit(nogil=True, inline="always")(function)


def usable_in_loops(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let compiled loops call a Python function, which itself stays as it is and may be called with numpy arrays."""
    return register_jitable(function)
