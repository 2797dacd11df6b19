"""Compiles loops in a process of its own, which hands them on through the disk and ends.

The compiler takes 80 MiB and more that it does not give back, which a worker of a build has no room for; and where many
processes need a loop at the same time, one compiles it and the others take it from the disk.
"""

import importlib
import os
import pickle
import select
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

IDLE_S = 2.0
"""How long the process waits for the next loop. Those that a unit of a build needs follow each other at once."""
_PROGRAM = "import sys; sys.path[:] = {path!r}; from megabert.loops_compiler import serve; serve()"
_compiler: subprocess.Popen[bytes] | None = None
"""The process that compiles for this one, if it was started."""
_owner = 0
"""The process that started it: one that was forked since must not use its pipes."""
_is_compiler = False


def is_compiler() -> bool:
    """Return whether this process compiles for another one."""
    return _is_compiler


def compile_elsewhere(function: Callable[..., Any], signature: Any) -> None:
    """Have a loop compiled and kept on the disk; where that is impossible, nothing is there afterwards.

    Args:
        function: The Python function of a loop, found by its name in its module.
        signature: Types of its arguments.
    """
    request = pickle.dumps((function.__module__, function.__name__, pickle.dumps(signature)))
    for _ in range(2):  # a process that waited too long ends, perhaps between two lines here
        process = _running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(len(request).to_bytes(8, "little") + request)
            process.stdin.flush()
        except BrokenPipeError:
            process.wait()
            continue
        if process.stdout.read(1):
            return


def _running() -> subprocess.Popen[bytes]:
    """Return the process that compiles, started anew where it has ended."""
    global _compiler, _owner
    if _compiler is None or _owner != os.getpid() or _compiler.poll() is not None:
        command = [sys.executable, "-c", _PROGRAM.format(path=sys.path)]
        _compiler = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        _owner = os.getpid()
    return _compiler


def serve() -> None:
    """Compile what the parent asks for, until it ends or asks for nothing more."""
    global _is_compiler
    _is_compiler = True
    while select.select([sys.stdin.buffer], [], [], IDLE_S)[0] and (header := sys.stdin.buffer.read(8)):
        module, name, signature = pickle.loads(sys.stdin.buffer.read(int.from_bytes(header, "little")))
        with suppress(Exception):  # the parent compiles it itself, and shows what is wrong
            getattr(importlib.import_module(module), name).compile(pickle.loads(signature))
        os.write(sys.stdout.fileno(), b"\n")
