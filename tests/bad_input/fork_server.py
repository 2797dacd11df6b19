"""A process that has imported everything once and forks for each command: a command then starts in milliseconds.

It reads requests, a JSON object a line, from standard input, and answers each with a line on standard output. The child
is the command as a shell starts it: own session, own working folder, environment and files for its output.
"""

import atexit
import gc
import json
import os
import pkgutil
import resource
import signal
import sys
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

POLL_S = 0.02
NOT_IMPORTABLE: set[str] = set()
"""Names in a child's ``sys.modules`` that cannot be imported by name."""


def import_everything() -> None:
    """Import what commands import when they run, so that no child has to."""
    import deepspeed
    import pyarrow.parquet
    import transformers
    from torch.utils import tensorboard

    import data_prep.commands
    import megabert.commands
    import megabert.training.pretrain

    assert all((deepspeed, pyarrow.parquet, transformers, tensorboard, megabert.training.pretrain))
    for package in (data_prep.commands, megabert.commands):
        for module in pkgutil.iter_modules(package.__path__):
            import_module(f"{package.__name__}.{module.name}")


def become_the_command(request: dict[str, Any]) -> None:
    """Turn a child into the command: files, folder, environment; ends the process."""
    os.setsid()
    for name, descriptor in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        flags = os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT
        os.dup2(os.open(request[name], flags, 0o644), descriptor)
    os.chdir(request["folder"])
    for name, value in request["environment"].items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    sys.argv = [request["program"], *request["words"]]
    main = import_module({"megabert": "megabert.cli.main", "megabert-data": "data_prep.cli"}[request["program"]]).main
    code = main()
    sys.stdout.flush()
    Path(request["modules"]).write_text("\n".join(sys.modules))
    atexit._run_exitfuncs()
    os._exit(code)  # taking a forked interpreter apart would copy every page of its parent


def family_of(pid: int) -> list[int]:
    """Return a process and all its descendants. A scan of all of ``/proc`` would cost more than most commands."""
    pids = [pid]
    for member in pids:  # grows while it is walked
        for children in Path(f"/proc/{member}/task").glob("*/children"):
            with suppress(OSError):  # the process has ended
                pids += map(int, children.read_text().split())
    return pids


def resident_bytes(family: list[int]) -> int:
    """Return the resident memory of processes, those that ended left out."""
    total = 0
    for pid in family:
        with suppress(OSError, IndexError):
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    return total


def watch(pid: int, request: dict[str, Any]) -> dict[str, Any]:
    """Wait for a child; kill it and its children when it takes too long or too much memory.

    Returns:
        ``code`` (negative: a signal), ``seconds``, ``cpu_seconds`` and ``peak_bytes`` of it and its children, and
        ``ended``, the bound that it broke, if any.
    """
    start, peak, ended = time.monotonic(), 0, ""
    while True:
        done, status, used = os.wait4(pid, os.WNOHANG)
        if done:
            break
        family = family_of(pid)
        peak = max(peak, resident_bytes(family))
        if time.monotonic() - start > request["timeout_s"]:
            ended = "time"
        elif peak > request["memory_bytes"]:
            ended = "memory"
        if ended:
            for member in family:
                with suppress(ProcessLookupError):
                    os.kill(member, signal.SIGKILL)
        time.sleep(POLL_S)
    return {
        "code": os.waitstatus_to_exitcode(status),
        "seconds": time.monotonic() - start,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "peak_bytes": peak,
        "ended": ended,
    }


def import_what_was_imported(path: Path) -> None:
    """Import what a child has imported while it ran (torch's compiler, scipy), so that the next child does not.

    Args:
        path: The file in which the child lists its modules; there is none where it was killed.
    """
    if path.exists():
        new = [name for name in path.read_text().split("\n") if name not in sys.modules and name not in NOT_IMPORTABLE]
        for name in new:
            try:
                import_module(name)
            except BaseException:  # a module that a library makes itself
                NOT_IMPORTABLE.add(name)
        if new:
            gc.freeze()


def serve() -> None:
    """Answer requests until standard input ends."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no reply
    import_everything()
    gc.freeze()  # else a child's collector copies its parent's memory
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            become_the_command(request)
        reply = watch(pid, request)
        import_what_was_imported(Path(request["modules"]))
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    serve()
