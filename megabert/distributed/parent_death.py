"""Ranks die with their launcher: an orphan would continue to write into a run folder that is started again.

Linux offers PR_SET_PDEATHSIG: the kernel sends a process a signal when its parent dies. That covers torchrun and srun,
which start the ranks themselves. The ``deepspeed`` command does not: it starts ``deepspeed.launcher.launch``, which
starts the ranks and outlives the command that the user killed. So below ``deepspeed`` a thread also waits for the
grandparent's end.
"""

import contextlib
import ctypes
import os
import select
import signal
import threading
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_launcher() -> None:
    """Arrange for SIGKILL when the launcher of this rank dies, however it dies (Linux; elsewhere nothing happens)."""
    parent = os.getppid()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent died before the call took effect
        os.kill(os.getpid(), signal.SIGKILL)
    runner = _deepspeed_runner(parent)
    if runner is not None:
        threading.Thread(target=_die_with, args=(runner,), name="launcher-death", daemon=True).start()


def _deepspeed_runner(parent: int) -> int | None:
    """Return the pid of the ``deepspeed`` command where ``parent`` is its per-node launcher."""
    try:
        if b"deepspeed.launcher.launch" not in Path(f"/proc/{parent}/cmdline").read_bytes():
            return None
        # The second field is the command in brackets, which may hold spaces; the parent's pid is the second after it.
        status = Path(f"/proc/{parent}/stat").read_text(encoding="ascii", errors="replace")
        runner = int(status.rsplit(")", 1)[1].split()[1])
        return runner if b"deepspeed" in Path(f"/proc/{runner}/cmdline").read_bytes() else None
    except (OSError, ValueError, IndexError):
        return None


def _die_with(pid: int) -> None:
    """Wait for the end of a process that is not a child, then end this one."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:  # already gone, or a kernel without pidfd
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 0)
            return
    else:
        select.select([descriptor], [], [])  # readable once the process has ended
    os.kill(os.getpid(), signal.SIGKILL)
