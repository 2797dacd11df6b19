"""The line of progress of a step: units done, how fast they come, and the time left."""

import sys
import threading
import time
from collections import deque
from typing import Any, NamedTuple, Self

from tqdm import tqdm

from megabert.settings.command_line.terminal import unfiltered

INTERVAL_S = 5.0
"""Between two lines of progress."""
QUIET_S = 20.0
"""Between two lines of progress while no unit is finished."""
WINDOW = 64
"""Units whose finish tells how fast the others will be."""


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


def say_stage(text: str) -> None:
    """Say which part of a long unit begins, from the worker that does it: the line of progress counts whole units."""
    clear = "\r\x1b[K" if sys.stderr.isatty() else ""  # the bar of rank 0, which is drawn again
    print(f"{clear}{text}", file=unfiltered(sys.stderr), flush=True)


class UnitProgress:
    """Counts finished units and shows how many there are, how fast they come, and the time left.

    On a terminal that is a bar, else a line every few seconds and one at the end; both on stderr.
    """

    def __init__(self, title: str, units: int, rate: Rate | None = None, workers: int = 1) -> None:
        """Begin a step.

        Args:
            title: Name of the step.
            units: How many units it has.
            rate: What to show per second.
            workers: How many units are done at a time.
        """
        self._title, self._units, self._rate, self._workers = title, units, rate, workers
        self._done = self._skipped = 0
        self._amount = 0.0
        self._start = self._shown = time.monotonic()
        self._finishes: deque[float] = deque(maxlen=WINDOW + 4 * workers)
        # With `disable=None` the bar is for terminals only.
        form = "{desc} |{bar}|"
        text = self._text(self._start)
        file = unfiltered(sys.stderr)
        self._bar = tqdm(desc=text, total=units, bar_format=form, dynamic_ncols=True, file=file, disable=None)
        # A unit may take minutes: without a thread nothing would move meanwhile.
        self._lock, self._is_over = threading.Lock(), threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the step; one that failed leaves its last line as it is."""
        if kind is None:
            self.close()
        self._is_over.set()

    def advance(self, counts: dict[str, Any]) -> None:
        """Count one finished unit."""
        now = time.monotonic()
        with self._lock:
            self._amount += counts.get(self._rate.key, 0) if self._rate else 0
            if self._done + 1 - self._skipped >= self._workers:
                self._finishes.append(now)
            self._count(1, now)

    def skip(self, units: int) -> None:
        """Count units that an earlier run has finished."""
        with self._lock:
            self._skipped += units
            self._count(units, time.monotonic())

    def _count(self, units: int, now: float) -> None:
        self._done += units
        if not self._bar.disable:  # without a terminal, units that are done by the thousand cost no text each
            self._bar.set_description_str(self._text(now), refresh=False)
            self._bar.update(units)
        self._print_after(INTERVAL_S, now)

    def close(self) -> None:
        """Show the final counts."""
        self._is_over.set()
        with self._lock:
            text = self._text(time.monotonic())
            if self._bar.disable:
                print(text, file=sys.stderr, flush=True)
            self._bar.set_description_str(text, refresh=False)
            self._bar.close()

    def _beat(self) -> None:
        while not self._is_over.wait(1):
            with self._lock:
                now = time.monotonic()
                self._bar.set_description_str(self._text(now))
                self._print_after(QUIET_S, now)

    def _print_after(self, seconds: float, now: float) -> None:
        is_last = self._done == self._units  # which `close` prints
        if self._bar.disable and not is_last and now - self._shown >= seconds:
            self._shown = now
            print(self._text(now), file=sys.stderr, flush=True)

    def _text(self, now: float) -> str:
        share = f" ({100 * self._done // self._units}%)" if 0 < self._done < self._units else ""
        parts = [f"{self._title}: {self._done:,}/{self._units:,} units{share}"]
        if self._skipped:
            parts.append(f"{self._skipped} done before")
        elapsed = max(now - self._start, 1e-9)
        if self._rate and self._amount:
            parts.append(f"{self._amount / elapsed / self._rate.scale:,.1f} {self._rate.label}")
        # The time left is estimated from the latest units, and from none before each worker has finished one: while
        # those are done, workers start and loops are compiled. Units of an earlier run are only checked, so they say
        # nothing about the others.
        counted = len(self._finishes) - 1
        if counted >= self._workers and self._done < self._units:
            left = (self._finishes[-1] - self._finishes[0]) / counted * (self._units - self._done)
            parts.append(f"{tqdm.format_interval(left)} left")
        return ", ".join([*parts, f"{elapsed:.1f} s"])
