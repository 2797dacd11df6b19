"""SIGTERM, SIGUSR1 and Ctrl-C: a request to stop that is granted between two steps, never in the middle of one.

Job schedulers send the first two before they end a job. The run saves, and exits with a code that says "continue me".

Before the first step of a start there is nothing to save: SIGTERM and Ctrl-C end the command at once, as any other one.
SIGUSR1 waits for that step: it comes before a time limit, and a job that is requeued without a step never advances.
"""

import signal
import threading
from types import FrameType

from megabert.settings.command_line.signals import SIGNALS as COMMAND_SIGNALS

SIGNALS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Context manager that turns the signals into a flag; later ones change nothing.

    Enter it in the main thread before imports and start-up, which take seconds: until then a signal ends the process.
    A second SIGTERM or Ctrl-C ends it at once, as ``megabert.settings.command_line.signals`` says.
    """

    def __init__(self, waits_for: str | None = None) -> None:
        """Prepare.

        Args:
            waits_for: The work that is finished first, shown to the sender of a signal; Ctrl-C does not wait for it.
                None for a training, which takes SIGTERM and Ctrl-C from ``begin_saving`` on.
        """
        self._waits_for = waits_for or "the start-up, a first step and a checkpoint"
        self._first = SIGNALS[:2] if waits_for else SIGNALS[:1]
        self.received: str | None = None
        """Name of the first signal, or None."""
        self._previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> "StopSignals":
        COMMAND_SIGNALS.waits_for = lambda: self._waits_for
        self._take(self._first)
        return self

    def begin_saving(self) -> None:
        """Let SIGTERM and Ctrl-C wait as well from here on: there is work to save."""
        if self._previous:  # entered, in the main thread
            self._take(tuple(number for number in SIGNALS if number not in self._previous))

    def _take(self, numbers: tuple[signal.Signals, ...]) -> None:
        COMMAND_SIGNALS.graceful = (*COMMAND_SIGNALS.graceful, *numbers)
        for number in numbers:
            # A shell's background has Ctrl-C ignored: it is for another program.
            is_ignored = number == signal.SIGINT and signal.getsignal(number) == signal.SIG_IGN
            self._previous[number] = signal.signal(number, signal.SIG_IGN if is_ignored else self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)  # job scripts hold them until here

    def __exit__(self, *exception: object) -> None:
        # A launcher ends the other ranks at the first non-zero exit: that must not change the code of a rank that has
        # saved and is on its way out.
        COMMAND_SIGNALS.graceful = ()
        for number, previous in self._previous.items():
            signal.signal(number, signal.SIG_IGN if self.received else previous)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        # Only assignments: a handler may interrupt anything, the holder of a lock included.
        if self.received is None:
            self.received = signal.Signals(number).name
            COMMAND_SIGNALS.noted = number
        elif number == signal.SIGTERM and number in self._first and self.received == "SIGUSR1":
            COMMAND_SIGNALS.end(number, frame)  # nothing is to be saved, and srun may wait for this rank


class CtrlC(StopSignals):
    """Ctrl-C in a caller's own process: the first one saves the run, a second one is the caller's again."""

    def __enter__(self) -> "CtrlC":
        return self

    def begin_saving(self) -> None:
        """Wait for Ctrl-C, unless the caller has a handler of its own or trains in another thread than the main one."""
        is_free = signal.getsignal(signal.SIGINT) is signal.default_int_handler and self.received is None
        if is_free and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._note)

    def __exit__(self, *exception: object) -> None:
        if signal.getsignal(signal.SIGINT) == self._note:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = "Ctrl-C"
        signal.signal(number, signal.default_int_handler)
