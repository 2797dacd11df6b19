"""Processes that a test has started, or whose ids it has read, looked at from outside."""

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def free_port() -> int:
    """Return a TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def has_ended(pid: int) -> bool:
    """Return whether a process is gone, or a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def wait_for(condition: Callable[[], T], timeout_s: float = 30.0) -> T:
    """Return the first true value of a condition, which is asked twenty times a second."""
    deadline = time.monotonic() + timeout_s
    while not (result := condition()):
        assert time.monotonic() < deadline, f"it did not happen in {timeout_s} s"
        time.sleep(0.05)
    return result
