"""A process that has imported everything once and forks for each command: a command then starts in milliseconds.

It reads requests, a JSON object a line, from standard input, and answers each with a line on standard output. The child
is the command as a shell starts it: own session, own working folder, environment and files for its output.
"""

import atexit
import gc
import json
import os
import pkgutil
import signal
import sys
import time
from importlib import import_module
from typing import Any

import psutil

POLL_S = 0.02


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
    atexit._run_exitfuncs()
    os._exit(code)  # taking a forked interpreter apart would copy every page of its parent


def resident_bytes(family: list[psutil.Process]) -> int:
    """Return the resident memory of processes, those that ended left out."""
    total = 0
    for process in family:
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def watch(pid: int, request: dict[str, Any]) -> dict[str, Any]:
    """Wait for a child; kill it and its children when it takes too long or too much memory.

    Returns:
        ``code`` (negative: a signal), ``seconds``, ``peak_bytes`` of it and its children, and ``ended``, the bound that
        it broke, if any.
    """
    start, peak, ended = time.monotonic(), 0, ""
    command = psutil.Process(pid)
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        try:
            family = [command, *command.children(recursive=True)]
        except psutil.NoSuchProcess:
            continue
        peak = max(peak, resident_bytes(family))
        if time.monotonic() - start > request["timeout_s"]:
            ended = "time"
        elif peak > request["memory_bytes"]:
            ended = "memory"
        if ended:
            for process in family:
                try:
                    process.send_signal(signal.SIGKILL)
                except psutil.NoSuchProcess:
                    continue
        time.sleep(POLL_S)
    seconds = time.monotonic() - start
    return {"code": os.waitstatus_to_exitcode(status), "seconds": seconds, "peak_bytes": peak, "ended": ended}


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
        replies.write(json.dumps(watch(pid, request)) + "\n")
        replies.flush()


if __name__ == "__main__":
    serve()
