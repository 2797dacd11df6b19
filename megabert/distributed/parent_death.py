"""Ranks die with their launcher: an orphan would continue to write into a run folder that is started again.

``die_with_launcher`` is the first thing that a rank does, before imports that take seconds; so this file imports
little. A launcher can be killed at any moment, and each of these closes a gap that the others leave:

- PR_SET_PDEATHSIG: the kernel sends a process a signal when its parent dies (Linux).
- The parent need not be the launcher. Below ``deepspeed`` it is ``deepspeed.launcher.launch``, which outlives the
  command that the user killed; below any launcher it may be a script that starts the rank. A thread waits for them.
- Launchers may die before the rank gets here. An orphan is adopted without notice, mostly by process 1; but its new
  parent belongs to another session. So does the new parent of an orphaned ``deepspeed.launcher.launch``, which starts
  its ranks seconds later.
- torchrun gives each rank a session of its own. But it listens where its ranks are to meet before it starts them: if a
  connection is refused there, torchrun is gone. (Torch's own client would try again for half an hour.)
"""

import contextlib
import ctypes
import os
import sys

from megabert.foundation.errors import EXIT_KILLED

SET_BY_SCRIPTS = ("RANK", "WORLD_SIZE")
"""Variables that torchrun, deepspeed and scripts give their ranks."""
SET_BY_SRUN = ("SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS")
"""Variables of a task of srun. A batch script itself has SLURM_PROCID as well, but is no task of a step."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_SIGKILL = 9
_MOST_ANCESTORS = 16  # ends the walk to the launcher, whatever /proc shows
_CONNECT_S = 5.0  # a closed port answers at once: only a silent network takes longer
_UNSEEN = -1

_arranged_for: int | None = None  # pid: a forked child has to arrange for itself


def is_launched() -> bool:
    """Return whether a launcher started this process."""
    return any(all(name in os.environ for name in names) for names in (SET_BY_SCRIPTS, SET_BY_SRUN))


def die_with_launcher() -> None:
    """Arrange for SIGKILL when the launcher of this rank dies, however it dies, or end at once if it is dead.

    Linux only; elsewhere nothing happens. A second call does nothing.
    """
    global _arranged_for
    if _arranged_for == os.getpid() or not sys.platform.startswith("linux"):
        return
    _arranged_for = os.getpid()
    parent = os.getppid()
    with contextlib.suppress(OSError, AttributeError):  # a C library without it: the thread watches the parent as well
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    launchers, is_orphan = _launchers()
    if os.getppid() != parent or is_orphan:
        _end("its launcher ended before it had started")
    if _torchrun_is_gone():
        _end("torchrun has ended: nothing listens at MASTER_ADDR and MASTER_PORT")
    if launchers:
        import threading

        threading.Thread(target=_die_with, args=(launchers,), name="launcher-death", daemon=True).start()


def _launchers() -> tuple[list[int], bool]:
    """Return the ancestors without which this rank must not run, and whether one of them has been orphaned."""
    launchers: list[int] = []
    # Scripts that set RANK by themselves may well put their ranks into the background and end.
    is_known = "TORCHELASTIC_RUN_ID" in os.environ or "CROSS_SIZE" in os.environ  # torchrun, deepspeed
    child = os.getpid()
    while len(launchers) < _MOST_ANCESTORS:
        parent, session = _parent_and_session(child)
        session_of_parent = _parent_and_session(parent)[1]
        if session_of_parent == _UNSEEN:
            break
        # A process that leads no session got its session from the process that started it.
        if is_known and session not in (child, session_of_parent):
            return launchers, True
        launchers.append(parent)
        is_wrapper = is_known and _has_own_rank(parent)
        if not is_wrapper and not _is_launch_of_deepspeed(parent):
            break
        child = parent
    return launchers, False


def _parent_and_session(pid: int) -> tuple[int, int]:
    """Return the parent and the session of a process, or _UNSEEN if it has ended or is outside the container."""
    # The second field is the command in brackets, which may hold spaces and brackets.
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return (int(fields[1]), int(fields[3])) if len(fields) > 3 else (_UNSEEN, _UNSEEN)


def _has_own_rank(pid: int) -> bool:
    """Return whether a process was started with this rank's variables: a script between the launcher and the rank."""
    return os.fsencode(f"RANK={os.environ.get('RANK')}") in _read(f"/proc/{pid}/environ").split(b"\0")


def _is_launch_of_deepspeed(pid: int) -> bool:
    """Return whether ``deepspeed`` started a process as its launcher on a node; False if a user started it by hand."""
    if b"deepspeed.launcher.launch" not in _read(f"/proc/{pid}/cmdline"):
        return False
    parent, session = _parent_and_session(pid)
    is_orphan = session not in (pid, _parent_and_session(parent)[1])
    return is_orphan or b"deepspeed" in _read(f"/proc/{parent}/cmdline")


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _torchrun_is_gone() -> bool:
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT", "")
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or not address or not port.isdecimal():
        return False
    import socket

    try:
        socket.create_connection((address, int(port)), timeout=_CONNECT_S).close()
    except ConnectionRefusedError:
        return True
    except (OSError, OverflowError, ValueError):  # a name or a network that fails is reported where the ranks meet
        return False
    return False


def _die_with(launchers: list[int]) -> None:
    """Wait for the end of any of these processes, then end this one."""
    import select

    poll = select.poll()
    try:
        for pid in launchers:
            poll.register(os.pidfd_open(pid), select.POLLIN)  # readable once the process has ended
    except ProcessLookupError:
        pass
    except OSError:  # a kernel without pidfd
        return
    else:
        if _launchers() == (launchers, False):  # else one has ended, and its number may be another's by now
            poll.poll()
    os.kill(os.getpid(), _SIGKILL)


def _end(why: str) -> None:
    print(f"megabert: this rank ends: {why}.", file=sys.stderr, flush=True)
    os._exit(EXIT_KILLED)
