"""SIGTERM and SIGUSR1: a request to stop that is granted between two steps, never in the middle of one.

Job schedulers send them before they end a job. The run saves, and exits with a code that says "continue me".
"""

import signal
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class StopSignals:
    """Context manager that turns the signals into a flag; later ones change nothing.

    Enter it in the main thread before imports and start-up, which take seconds: until then a signal ends the process.
    """

    def __init__(self) -> None:
        self.received: str | None = None
        """Name of the first signal, or None."""
        self._previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> "StopSignals":
        for number in SIGNALS:
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        # A launcher ends the other ranks at the first non-zero exit: that must not change the code of a rank that has
        # saved and is on its way out.
        for number, previous in self._previous.items():
            signal.signal(number, signal.SIG_IGN if self.received else previous)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        # Only an assignment: a handler may interrupt anything, the holder of a lock included.
        if self.received is None:
            self.received = signal.Signals(number).name
