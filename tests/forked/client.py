"""Commands that start in milliseconds, in children of a process that has imported everything."""

import atexit
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.environment import clear

TESTS = Path(__file__).parents[1]


def environment_of_commands() -> dict[str, str]:
    """Return the environment in which commands run: this process's, with one thread, this checkout and no GPU."""
    environment = dict(os.environ)
    clear(environment)
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    code = f"{TESTS}:{TESTS.parent}:{os.environ.get('PYTHONPATH', '')}"
    own = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}
    return {**environment, **own, "PATH": programs, "PYTHONPATH": code}


class ForkServer:
    """The process that ``server.py`` describes; with modules, it imports these alone, under variables of its own.

    It runs in this virtualenv, or in that of another Python.
    """

    def __init__(self, *modules: str, python: Path | str = sys.executable, **variables: str) -> None:
        self._process = subprocess.Popen(
            [python, "-m", "forked.server", *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment_of_commands() | variables,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Run commands one after the other, until one ends its process otherwise than by returning."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(requests) + "\n")
        self._process.stdin.flush()
        replies: list[dict[str, Any]] = json.loads(self._process.stdout.readline())
        return replies

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


@functools.cache
def fork_server() -> ForkServer:
    """Return this process's server, started when it is first asked for."""
    server = ForkServer()
    atexit.register(server.close)
    return server


def request_of(module: str, words: list[str], listing: Path, **wishes: Any) -> dict[str, Any]:
    """Return a command as a server is asked for it.

    Args:
        module: What ``python -m`` would run.
        words: Its arguments.
        listing: A new file, in which the command lists the modules that it has imported.
        wishes: What differs from a shell's command in this folder: ``ranks``, ``folder``, ``environment``, ``stdin``,
            ``stdout``, ``stderr``, ``timeout_s``, ``memory_bytes``, ``file_bytes`` (a limit of file size).
    """
    usual = {
        "ranks": 1,
        "folder": os.getcwd(),
        "environment": environment_of_commands(),
        "memory_bytes": None,
        "file_bytes": None,
    }
    files = dict.fromkeys(("stdin", "stdout", "stderr"), os.devnull)
    request = {"module": module, "words": words, "modules": listing, "timeout_s": 240, **usual, **files, **wishes}
    return {name: str(value) if isinstance(value, Path) else value for name, value in request.items()}


def run_command(module: str, words: list[str], output: Path, *, server: ForkServer | None = None, **wishes: Any) -> int:
    """Run a command with its output appended to a file; return its exit code (negative: a signal).

    Raises:
        subprocess.TimeoutExpired: It took longer than ``timeout_s``; nothing of it is left.
    """
    listing = output.with_suffix(".modules")
    listing.unlink(missing_ok=True)
    request = request_of(module, words, listing, **{"stdout": output, "stderr": output, **wishes})
    (reply,) = (server or fork_server()).ask([request])
    if reply["ended"]:
        raise subprocess.TimeoutExpired([module, *words], request["timeout_s"])
    return int(reply["code"])
