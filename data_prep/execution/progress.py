"""One line of progress for a stage on stderr: units, rate, time left."""

import sys
import time
from typing import TextIO

INTERVAL_S = 5.0


class Progress:
    """Counts finished units; a live line on a terminal, else a line every few seconds and one at the end."""

    def __init__(self, title: str, units: int, *, measure: str = "", scale: float = 1.0, label: str = "") -> None:
        """Prepare a line.

        Args:
            title: Name of the stage.
            units: How many units it has.
            measure: Which count of a unit the rate is of, such as ``bytes``.
            scale: Divides the rate.
            label: Unit of the rate, such as ``MB/s``.
        """
        self._title, self._units = title, units
        self._measure, self._scale, self._label = measure, scale, label
        self._done = self._skipped = 0
        self._amount = 0.0
        self._start = self._shown = time.monotonic()
        self._stream: TextIO = sys.stderr

    def advance(self, counts: dict[str, float], *, was_skipped: bool) -> None:
        """Count one finished unit."""
        self._done += 1
        self._skipped += was_skipped
        if not was_skipped:
            self._amount += counts.get(self._measure, 0)
        now = time.monotonic()
        if self._stream.isatty():
            self._stream.write(f"\r\x1b[K{self._line(now)}")
            self._stream.flush()
        elif now - self._shown >= INTERVAL_S:
            self._shown = now
            print(self._line(now), file=self._stream, flush=True)

    def close(self) -> None:
        """Write the last line."""
        line = self._line(time.monotonic())
        print(f"\r\x1b[K{line}" if self._stream.isatty() else line, file=self._stream, flush=True)

    def _line(self, now: float) -> str:
        elapsed = max(now - self._start, 1e-9)
        parts = [f"{self._title}: {self._done}/{self._units} units"]
        if self._skipped:
            parts.append(f"{self._skipped} done before")
        if self._measure and self._amount:
            parts.append(f"{self._amount / elapsed / self._scale:,.1f} {self._label}")
        fresh = self._done - self._skipped
        if fresh and self._done < self._units:
            parts.append(f"{elapsed / fresh * (self._units - self._done):.0f} s left")
        return ", ".join([*parts, f"{elapsed:.1f} s"])
