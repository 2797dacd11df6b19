"""A process that has imported everything once and forks for each command: a command then starts in milliseconds.

It reads requests, a list of JSON objects a line, from standard input, and answers each list with one of replies on
standard output. A child runs the commands of a list one after the other; the last one is as a shell starts it, from the
fork to the exit code: own session, own working folder, environment and files for its output. Thousands of commands that
read a damaged file share children, since a fork takes longer than most of them.

A child may run its last command on several ranks, each a child of its own: it is the launcher then, a script that sets
RANK and waits. What only a command line of a shell can show (torchrun, deepspeed, the order of imports, another seed of
Python's hashes on each rank) is for tests that start one.
"""

import atexit
import functools
import gc
import json
import os
import pkgutil
import resource
import runpy
import select
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NoReturn

POLL_S = 0.02
NOT_IMPORTABLE = {"deepspeed.runtime.zero.muon.original_muon"}
"""Names in a child's ``sys.modules`` that cannot be imported by name, or not without torch's compiler, 2 s of it."""


def import_everything() -> None:
    """Import what commands import when they run, so that no child has to."""
    import deepspeed
    import pyarrow.parquet
    import transformers
    from torch.utils import tensorboard

    import data_prep.cli
    import data_prep.commands
    import megabert.cli
    import megabert.commands
    import megabert.training.pretrain

    assert all((deepspeed, pyarrow.parquet, transformers, tensorboard, megabert.training.pretrain))
    assert all((data_prep.cli, megabert.cli))
    for package in (data_prep.commands, megabert.commands):
        for module in pkgutil.iter_modules(package.__path__):
            import_module(f"{package.__name__}.{module.name}")


def become_the_commands(requests: list[dict[str, Any]], replies: IO[str]) -> None:
    """Turn a child into the commands of a list, in turn; ends the process with the exit code of the last one.

    Args:
        requests: The commands.
        replies: Takes a line with what came of each but the last, whose exit code is the process's.
    """
    os.setsid()
    for request in requests:
        Path("/proc/self/clear_refs").write_text("5")  # the peak of memory begins anew
        start = time.monotonic()
        code = run_command(request)
        sys.stdout.flush()
        if request is not requests[-1]:
            reply = {"code": code, "seconds": time.monotonic() - start, "peak_bytes": peak_bytes(), "ended": ""}
            print(json.dumps(reply), file=replies, flush=True)
    leave(code)


def leave(code: int) -> NoReturn:
    """End a forked process; taking its interpreter apart would copy every page of its parent."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


def forget() -> None:
    """Empty what functions of ours remember by path: the next command means another file by the same relative path."""
    ours = [module for name, module in sys.modules.items() if name.startswith(("megabert.", "data_prep."))]
    for value in [value for module in ours for value in vars(module).values()]:
        if isinstance(value, functools._lru_cache_wrapper):
            value.cache_clear()


def run_command(request: dict[str, Any]) -> int:
    """Set files, folder and environment; run the command, on its ranks if it has several; return its exit code."""
    forget()
    for name, descriptor in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        flags = os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND
        file = os.open(request[name], flags, 0o644)
        os.dup2(file, descriptor)
        os.close(file)
    os.chdir(request["folder"])
    resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_bytes"] or resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = [request["module"], *request["words"]]
    if request["ranks"] > 1:
        return run_ranks(request)
    code = run_module(request["module"])
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    Path(request["modules"]).write_text("\n".join(sys.modules))
    return code


def run_module(name: str) -> int:
    """Run a module as ``python -m`` does; return its exit code."""
    try:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def run_ranks(request: dict[str, Any]) -> int:
    """Run a command on ranks that are children; return the exit code of the first that fails."""
    size: int = request["ranks"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        os.environ.update(WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(probe.getsockname()[1]))
    ranks = []
    for rank in range(size):
        ranks.append(os.fork())
        if ranks[-1] == 0:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
            code = run_module(request["module"])
            if rank == 0:
                Path(request["modules"]).write_text("\n".join(sys.modules))
            leave(code)
    codes = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in ranks]
    return next((code % 256 for code in codes if code), 0)


def peak_bytes() -> int:
    """Return the most memory that was resident since the peak began anew."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


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


def lines_of(pipe: int) -> list[bytes]:
    """Return the lines that have come; each is short enough to be written, and so to be read, as one."""
    content = b""
    with suppress(BlockingIOError):
        while part := os.read(pipe, 1 << 16):
            content += part
    return content.splitlines()


def watch(pid: int, requests: list[dict[str, Any]], pipe: int) -> list[dict[str, Any]]:
    """Wait for a child; kill it and its children when a command takes too long or too much memory.

    Args:
        pid: The child.
        requests: Its commands.
        pipe: Gives the lines that it writes; reading does not block.

    Returns:
        A reply for each command up to the one with which the child ended: ``code`` (negative: a signal), ``seconds``,
        ``peak_bytes`` of it and its children, and ``ended``, the bound that it broke, if any.
    """
    replies: list[dict[str, Any]] = []
    start, peak, ended, is_done = time.monotonic(), 0, "", 0
    while not is_done:
        is_done, status = os.waitpid(pid, os.WNOHANG)
        for line in lines_of(pipe):
            replies.append(json.loads(line))
            replies[-1]["peak_bytes"] = max(replies[-1]["peak_bytes"], peak)
            start, peak = time.monotonic(), 0
        bounds = requests[min(len(replies), len(requests) - 1)]
        if bounds["memory_bytes"] is not None:
            peak = max(peak, resident_bytes(family_of(pid)))
        if time.monotonic() - start > bounds["timeout_s"]:
            ended = "time"
        elif bounds["memory_bytes"] is not None and peak > bounds["memory_bytes"]:
            ended = "memory"
        if ended:
            for member in family_of(pid):
                with suppress(ProcessLookupError):
                    os.kill(member, signal.SIGKILL)
        if not is_done:
            select.select([pipe], [], [], POLL_S)
    code, seconds = os.waitstatus_to_exitcode(status), time.monotonic() - start
    return [*replies, {"code": code, "seconds": seconds, "peak_bytes": peak, "ended": ended}]


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
    """Import the modules that are named, or everything, and answer requests until standard input ends."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no reply
    for name in sys.argv[1:]:
        import_module(name)
    if not sys.argv[1:]:
        import_everything()
    gc.freeze()  # else a child's collector copies its parent's memory
    for line in sys.stdin:
        requests = json.loads(line)
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            become_the_commands(requests, os.fdopen(writing, "w"))
        os.close(writing)
        os.set_blocking(reading, False)
        reply = watch(pid, requests, reading)
        os.close(reading)
        import_what_was_imported(Path(requests[-1]["modules"]))
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    serve()
