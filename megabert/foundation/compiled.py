"""Loops over numpy arrays, compiled to machine code at first use and kept on disk; the one home of `numba`.

Loops are in files named ``*_loops.py``, which are imported by the functions that call them, so that a command
that needs none does not wait for the compiler. They hold scalars and loops, and no floating-point arithmetic that
rounds, so every machine computes the same bytes, compiled just now or taken from the disk.

They take their arguments by name, as a `typing.NamedTuple` of arrays. A loop reads the fields into locals before it
starts: numba counts references of an array that is still in its tuple each time the loop touches it.

A loop that is not on the disk is compiled by a process of its own, which ends when it has nothing more to do: the
compiler takes 80 MiB and more that it does not give back, and a worker of a build has no room for that.
"""

import hashlib
import importlib
import logging
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numba
from filelock import FileLock, Timeout
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.runtime import rtsys
from numba.core.serialize import dumps
from numba.extending import register_jitable
from numba.np import linalg

logger = logging.getLogger(__name__)

COMPILE_S = 120.0
"""How long a process waits for another one that has a loop compiled, before it compiles the loop itself."""
_LOOK_S = 0.5
"""How often a waiting process checks for the loop."""
IDLE_S = 2
"""How long the compiler waits for its next loop. The loops of a unit of a build follow each other at once."""
_ROOT = Path(__file__).parents[2]
_OUR_IMPORT = re.compile(r"^\s*from ((?:megabert|data_prep)[\w.]*) import", re.MULTILINE)
_DIGEST_BYTES = hashlib.sha256().digest_size


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function of scalars and arrays; it runs without the interpreter's lock.

    If the cache cannot be written, each process compiles for itself, which takes seconds.
    """
    loop: Any = numba.njit(nogil=True)(function)
    if _FOLDER is not None:
        loop._cache = _Cache(function, _FOLDER)  # numba has no public way to say this
    return loop


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a small function that only loops call, as a part of each of them.

    numba pastes it in: called, it would count each array that it is given as used and unused again.
    """
    return numba.njit(nogil=True, inline="always")(function)


usable_in_loops = register_jitable
"""Lets compiled loops call a Python function, which itself stays as it is and may be called with numpy arrays."""


def _import_without_blas() -> None:
    """Import numba's array functions as if there were no BLAS, which they need for products of matrices only.

    No loop has one. numba would import scipy's linear algebra for it at the first loop, a quarter of a second in each
    process.
    """

    def ensure_blas() -> None:
        raise ImportError

    linalg.ensure_blas, original = ensure_blas, linalg.ensure_blas
    try:
        importlib.import_module("numba.np.arraymath")
    finally:
        linalg.ensure_blas = original


_import_without_blas()


def frozen_files() -> list[Path]:
    """Return the files that machine code is made from: all loops, and the files of ours that they import.

    A loop freezes the constants and functions of these files.
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
        # A folder alone may be left over from a package that became a file.
        waiting += [
            init if (init := module / "__init__.py").is_file() else module.with_suffix(".py") for module in modules
        ]
    return sorted(files)


def _cache_folder() -> Path | None:
    """Return the folder of machine code that was made from these very files; None if nothing can be written.

    It is in ``NUMBA_CACHE_DIR`` if that is set, and otherwise in the user's cache.
    """
    # A folder for each text: an old folder is never wrong, only unused, so two versions can share a home.
    digest = hashlib.sha256(f"{numba.__version__} {sys.version}".encode())
    for path in frozen_files():
        digest.update(path.read_bytes())
    try:
        user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "megabert"
        folder = Path(os.environ.get("NUMBA_CACHE_DIR") or user_cache) / f"loops-{digest.hexdigest()[:16]}"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # a RuntimeError: the user has no home folder
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None


_FOLDER = _cache_folder()


class _Cache(NullCache):
    """The machine code of a loop: one file per signature and kind of processor, followed by its SHA-256.

    numba's own cache keeps an index, which it reads and writes without a lock. Two processes that compile one loop for
    two types may then use the same file, and a third runs code for the wrong type. Here a file's name follows from its
    content and is given to a complete file, so that processes need not wait for each other to write.
    """

    def __init__(self, function: Callable[..., Any], folder: Path) -> None:
        self._function, self._folder, self._is_kept = function, folder, True

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return machine code from the disk. If it is not there, another process compiles it first."""
        # numba's own cache loads all of the compiler's tables here (`refresh`), a fifth of a second in each process.
        # Finished machine code needs nothing of them but the runtime, which counts references.
        rtsys.initialize(target_context)
        path = self._path(sig, target_context.codegen())
        content = _read(path)
        if content is None and not _is_compiler:
            deadline = time.monotonic() + COMPILE_S
            with suppress(OSError):  # then this process compiles it
                # Of several processes that need the loop, one has it compiled. The others take it from the disk as soon
                # as it is there, all at once: each needs a quarter of a second for its first one.
                while not path.exists() and time.monotonic() < deadline:
                    with suppress(Timeout), FileLock(self._folder / "compiling").acquire(timeout=_LOOK_S):
                        if not path.exists():
                            _compile_elsewhere(self._function, sig)
                        break
            content = _read(path)
        return None if content is None else CompileResult._rebuild(target_context, *content)

    def save_overload(self, sig: Any, cres: Any) -> None:
        """Keep machine code; if that fails, this process still has it."""
        if not self._is_kept or cres.library.has_dynamic_globals:  # such globals are addresses in this process
            return
        path = self._path(sig, cres.codegen)
        temporary = path.with_suffix(f".{os.getpid()}")
        content = dumps(cres._reduce())
        try:
            temporary.write_bytes(content + hashlib.sha256(content).digest())
            temporary.replace(path)
        except OSError as error:
            logger.warning("%s: compiled loops cannot be kept (%s)", self._folder, error.strerror or error)
            self._is_kept = False
            with suppress(OSError):
                temporary.unlink()

    def _path(self, sig: Any, codegen: Any) -> Path:
        key = hashlib.sha256(repr((sig, codegen.magic_tuple())).encode()).hexdigest()
        return self._folder / f"{self._function.__module__}.{self._function.__qualname__}-{key[:16]}.nbc"


def _read(path: Path) -> Any:
    """Return the content of a file of machine code; None if there is none, or if it is damaged or outdated.

    Damaged code would end the process, or compute something else.
    """
    try:
        content = path.read_bytes()
    except OSError:
        return None
    data, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    if hashlib.sha256(data).digest() != digest:
        logger.warning("%s: damaged, so its loops are compiled anew", path)
    else:
        with suppress(Exception):  # the class of an argument may be in another module now; pickle raises nearly any
            return pickle.loads(data)
    with suppress(OSError):
        path.unlink()
    return None


_is_compiler = False
"""Whether this process compiles for another one."""
_PROGRAM = "import sys; sys.path[:] = {path!r}; from megabert.foundation.compiled import compile_for_parent as c; c()"


def _compile_elsewhere(function: Callable[..., Any], sig: Any) -> None:
    """Have a loop compiled and kept on the disk. If that fails, nothing is there afterwards."""
    request = dumps((function.__module__, function.__name__, sig))
    for _ in range(2):  # a process that waited too long ends, perhaps between two lines here
        process = _compiler(os.getpid())
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write(request)
            process.stdin.flush()
            if process.stdout.read(1):
                return
        process.wait()
        _compiler.cache_clear()


@lru_cache(maxsize=1)
def _compiler(parent: int) -> subprocess.Popen[bytes]:
    """Start the process that compiles for a process; one that was forked since must not use its pipes."""
    command = [sys.executable, "-c", _PROGRAM.format(path=sys.path)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def compile_for_parent() -> None:
    """Compile one loop after the other for the parent, until it ends or asks for nothing more."""
    global _is_compiler
    _is_compiler = True
    while True:
        signal.alarm(IDLE_S)  # ends the process
        module, name, sig = pickle.load(sys.stdin.buffer)  # an EOFError here ends it as well
        signal.alarm(0)
        with suppress(Exception):  # the parent compiles it itself, and shows the error
            getattr(importlib.import_module(module), name).compile(sig)
        os.write(sys.stdout.fileno(), b"\n")
