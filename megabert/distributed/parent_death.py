"""Ranks die with their launcher: an orphan would go on writing into a run folder that is started again."""

import contextlib
import ctypes
import os
import select
import signal
import threading
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_launcher() -> None:
    """Arrange for SIGKILL when the launcher of this rank dies, however it dies (Linux; elsewhere nothing happens).

    The parent's death is the kernel's business (PDEATHSIG). The ``deepspeed`` command is a grandparent: it starts
    ``deepspeed.launcher.launch``, which outlives it, so a thread waits for the grandparent's end.
    """
    parent = os.getppid()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call took effect
        os.kill(os.getpid(), signal.SIGKILL)
    runner = _deepspeed_runner(parent)
    if runner is not None:
        threading.Thread(target=_die_with, args=(runner,), name="launcher-death", daemon=True).start()


def _deepspeed_runner(parent: int) -> int | None:
    """Return the pid of the ``deepspeed`` command where ``parent`` is its per-node launcher."""
    try:
        if b"deepspeed.launcher.launch" not in Path(f"/proc/{parent}/cmdline").read_bytes():
            return None
        status = Path(f"/proc/{parent}/stat").read_text(encoding="ascii", errors="replace")
        runner = int(status.rsplit(")", 1)[1].split()[1])
        return runner if b"deepspeed" in Path(f"/proc/{runner}/cmdline").read_bytes() else None
    except (OSError, ValueError, IndexError):
        return None


def _die_with(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:  # already gone, or a kernel without pidfd
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 0)
            return
    else:
        select.select([descriptor], [], [])
    os.kill(os.getpid(), signal.SIGKILL)
