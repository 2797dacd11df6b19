"""Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 end a command at any moment: with the shell's exit code, and nothing left.

What happens depends on the moment.

- Modules are being imported, and no file of ours is open: the process ends in the handler. An exception would be lost
  in the callbacks of the import system.
- Work is under way: `Interrupted` is raised in the main thread, so that open files are closed and removed. Python
  drops an exception that is raised in a callback, and libraries in C may drop any; a timer notices and raises it again.
- The command has ended: its exit code stands.

A thread reads the signals as well, since Python's handlers wait for the function in C that the main thread is in. It
names the work that the command waits for, and ends the process at the second signal.

One SIGTERM, second by second:

    0     the thread reads its number from a pipe (`_listen`) and starts `_acknowledge`, which sleeps
    0     or once its function in C returns, the main thread enters `end`: `Interrupted` is raised, a timer started
    0.1   and every 0.1 s: `_raise_again` raises it once more if the object is gone and the command still runs
    1     `_acknowledge` says on stderr the work that the command finishes, unless it has ended
    5     from now on another SIGTERM is a second one: `_listen` ends the process at once
    end   `words` makes the last message, `close` stops the timer and ignores what still comes

This module is imported before all others, so it imports little itself.
"""

import os
import signal
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from megabert.settings.command_line.terminal import open_closed

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
FORCING = ENDING[:3]
"""Signals of which a second one ends the process at once. Not SIGUSR1: SLURM sends it well before a first SIGTERM."""
CHECK_S = 0.1
"""Time between two looks at whether the exception was dropped."""
ONE_REQUEST_S = {signal.SIGINT: 0.5}
"""Signals that come so soon after the first one are the same request: a launcher passes on what its ranks got too."""
ONE_REQUEST_OTHER_S = 5.0
CHILD_S = 20.0
"""How long a command may take to end in order before it is killed."""
POLL_S = 0.02
"""Time between two looks at whether a command has ended."""
PATIENCE_S = 1.0
"""After this time, a command that still runs names the reason."""


class Interrupted(KeyboardInterrupt):
    """The command is to end because of a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = exit_code(number)


def exit_code(number: int) -> int:
    """Return the exit code that a shell gives to a signal."""
    return 128 + number


class CommandSignals:
    """How the process answers signals; one object for both programs, `SIGNALS`."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        """The signal by which the command ends, if one came."""
        self.graceful: tuple[int, ...] = ()
        """Signals that another handler takes, which lets the command finish its step."""
        self.noted: int | None = None
        """The first of these that came. Its exit code stands if another signal ends the command before that: srun ends
        the other ranks when SIGUSR1 has ended one, and returns the highest code."""
        self.waits_for: Callable[[], str] = lambda: "the computation under way"
        """Returns the work that the command finishes after a signal; called by another thread."""
        self._program, self._is_installed = "megabert", False
        self._raised: weakref.ref[Interrupted] | None = None
        self._pipe, self._is_over, self._is_held = -1, False, False

    def install(self, program: str) -> None:
        """Take over the signals, unless they are ignored as under ``nohup``; a process does this once, at its start."""
        self._program, self._is_installed, self._is_over = program, True, False
        for number in ENDING:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self.end)
        signal.signal(signal.SIGALRM, self._raise_again)
        sys.unraisablehook = self._unraisable
        open_closed()  # else the pipe is taken for standard output
        reading, self._pipe = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(reading, True)
        signal.set_wakeup_fd(self._pipe, warn_on_full_buffer=False)
        threading.Thread(target=self._listen, args=(reading,), name="megabert-signals", daemon=True).start()

    def close(self) -> None:
        """Ignore the signals from here on: the command has its exit code, and the interpreter ends."""
        if not self._is_installed:
            return
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        os.close(self._pipe)  # ends the thread
        self._is_installed, self._is_over = False, True
        _remove_under_way()

    def words(self) -> str:
        """Return how the command ended, for its last message; nothing is acknowledged after that."""
        self._is_over = True
        how = "interrupted" if self.received in (None, signal.SIGINT) else f"ended by {self.received.name}"
        return f"{how}; the same command continues what was begun"

    def end(self, number: int, frame: FrameType | None) -> None:
        """End the command: the handler of all signals that no other one takes."""
        if self.received is not None:  # the thread ends the process, if that is meant
            return
        is_pending = signal.SIGUSR1 in signal.sigpending()  # held by a job script
        self.received = signal.Signals(signal.SIGUSR1 if is_pending else self.noted or number)
        if not self._is_held and _is_importing(frame) and not _is_anything_open():
            self._say(self.words())
            os._exit(exit_code(self.received))
        signal.setitimer(signal.ITIMER_REAL, CHECK_S, CHECK_S)
        if not self._is_held:
            self._raise()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Put a signal off until this block is left, for work of milliseconds that must not be left half done."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
            if self.received is not None and self._raised is None:
                self._raise()

    def _raise(self) -> None:
        assert self.received is not None
        error = Interrupted(self.received)
        self._raised = weakref.ref(error)
        raise error

    def _raise_again(self, number: int, frame: FrameType | None) -> None:
        """Raise the exception again if it was dropped: then the object is gone."""
        if self.received is not None and self._raised is not None and self._raised() is None:
            self._raise()

    def _unraisable(self, event: Any) -> None:
        """Show an exception of a callback, except an interruption, which is raised again."""
        if not issubclass(event.exc_type, Interrupted):
            sys.__unraisablehook__(event)

    def _listen(self, pipe: int) -> None:
        """Acknowledge the first signal, and end the process at the second one that asks for its end."""
        is_acknowledged, since = False, float("inf")
        while numbers := os.read(pipe, 64):
            for number in {*numbers} & {*ENDING, *self.graceful}:
                if not is_acknowledged:
                    is_acknowledged = True
                    threading.Thread(target=self._acknowledge, args=(number,), daemon=True).start()
                if number not in FORCING:
                    continue
                if time.monotonic() - since > ONE_REQUEST_S.get(signal.Signals(number), ONE_REQUEST_OTHER_S):
                    self._say(f"a second signal, {signal.Signals(number).name}: this ends at once")
                    _remove_under_way()
                    os._exit(exit_code(number))
                since = min(since, time.monotonic())
        os.close(pipe)

    def _acknowledge(self, number: int) -> None:
        if number not in self.graceful:
            time.sleep(PATIENCE_S)
        if self._is_over:
            return
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        self._say(f"{name} received: this ends after {self.waits_for()}; another Ctrl-C or SIGTERM ends it at once")

    def _say(self, text: str) -> None:
        # Not by print: a signal may come in the middle of another one, which holds the stream's lock.
        os.write(2, f"{self._program}: {text}\n".encode())


SIGNALS = CommandSignals()


def run_children(
    commands: Sequence[Sequence[str]], *, logs: Sequence[Path], slots: Sequence[Mapping[str, str]]
) -> Iterator[tuple[int, int]]:
    """Run commands side by side, one per slot, and yield the number and the exit code of each as it ends.

    If this process is interrupted, the commands under way end in order first; ``subprocess.run`` would kill them.

    Args:
        commands: The commands. They get no input, and their output is left out.
        logs: The file that each command's messages are appended to.
        slots: The environment of the commands in each slot.
    """
    import subprocess  # takes some milliseconds, which no other command needs

    from megabert.foundation.files import open_to_append

    waiting, free = deque(enumerate(commands)), deque(slots)
    running: dict[subprocess.Popen[bytes], tuple[int, Mapping[str, str]]] = {}
    try:
        while waiting or running:
            while waiting and free:
                number, command = waiting.popleft()
                slot = free.popleft()
                # A signal waits until the command is registered, so that it is ended below.
                with open_to_append(logs[number]) as log, SIGNALS.held():
                    process = subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, env=slot
                    )
                    running[process] = (number, slot)
            time.sleep(POLL_S)
            for process in [process for process in running if process.poll() is not None]:
                number, slot = running.pop(process)
                free.append(slot)
                yield number, process.returncode
    finally:
        for process in running:
            process.terminate()
        deadline = time.monotonic() + CHILD_S
        for process in running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _is_anything_open() -> bool:
    files = sys.modules.get("megabert.foundation.files")
    return hasattr(files, "is_anything_open") and files.is_anything_open()  # type: ignore[union-attr]


def _remove_under_way() -> None:
    """Remove temporary files that are left after an interruption in the middle of cleaning up."""
    files = sys.modules.get("megabert.foundation.files")
    if hasattr(files, "remove_under_way"):
        files.remove_under_way()  # type: ignore[union-attr]
