"""Progress of a step on stderr: a bar on a terminal, else a line every few seconds and one at the end."""

import sys
import time
from typing import NamedTuple

from tqdm import tqdm

INTERVAL_S = 5.0


class Rate(NamedTuple):
    """What of the units' counts is shown per second."""

    key: str
    """Key in the units' counts."""
    scale: float
    """Divides the count."""
    label: str
    """Unit of the quotient."""


BYTES = Rate("bytes", 1e6, "MB/s")
TOKENS = Rate("tokens", 1e6, "Mtokens/s")
INSTANCES = Rate("rows", 1e3, "k instances/s")


class Progress:
    """Counts finished units and shows how many there are, how fast they come, and the time left."""

    def __init__(self, title: str, units: int, rate: Rate | None = None) -> None:
        """Begin a step.

        Args:
            title: Name of the step.
            units: How many units it has.
            rate: What to show per second.
        """
        self._title, self._units, self._rate = title, units, rate
        self._done = self._skipped = 0
        self._amount = 0.0
        self._start = self._shown = time.monotonic()
        self._first_finish: float | None = None
        is_terminal = sys.stderr.isatty()
        self._bar = tqdm(
            total=units, bar_format="{desc} |{bar}|", dynamic_ncols=True, file=sys.stderr, disable=not is_terminal
        )

    def advance(self, counts: dict[str, float], *, was_skipped: bool) -> None:
        """Count one finished unit."""
        now = time.monotonic()
        self._done += 1
        self._skipped += was_skipped
        if not was_skipped:
            self._amount += counts.get(self._rate.key, 0) if self._rate else 0
            self._first_finish = self._first_finish or now
        self._bar.set_description_str(self._text(now), refresh=False)
        self._bar.update()
        if self._bar.disable and now - self._shown >= INTERVAL_S:
            self._shown = now
            print(self._text(now), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Show the final counts."""
        text = self._text(time.monotonic())
        if self._bar.disable:
            print(text, file=sys.stderr, flush=True)
        else:
            self._bar.set_description_str(text, refresh=False)
            self._bar.close()

    def _text(self, now: float) -> str:
        parts = [f"{self._title}: {self._done}/{self._units} units"]
        if self._skipped:
            parts.append(f"{self._skipped} done before")
        elapsed = max(now - self._start, 1e-9)
        if self._rate and self._amount:
            parts.append(f"{self._amount / elapsed / self._rate.scale:,.1f} {self._rate.label}")
        # The time left is estimated from the units after the first: while that one is done, workers start and loops are
        # compiled. Units of an earlier run are only checked, so they say nothing about the others.
        counted = self._done - self._skipped - 1
        if counted > 0 and self._first_finish is not None and self._done < self._units:
            left = (now - self._first_finish) / counted * (self._units - self._done)
            parts.append(f"{tqdm.format_interval(left)} left")
        return ", ".join([*parts, f"{elapsed:.1f} s"])
