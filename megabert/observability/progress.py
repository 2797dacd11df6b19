"""Progress of work that takes a while: a bar on a terminal, lines elsewhere, both with percent and the time left."""

import logging
import sys
import time
from typing import Any, Self

from tqdm import tqdm

from megabert.observability.logs import logger
from megabert.settings.command_line.terminal import printable, unfiltered
from megabert.settings.config.run import RunConfig

QUIET_S = 20.0
"""Between two lines of work that reports nothing itself."""


class Progress:
    """Counts finished units, such as steps of a phase or examples of a file, at rank 0; silent on the other ranks."""

    def __init__(self, *, title: str, total: int, done: int = 0, unit: str = "step", is_main: bool = True) -> None:
        """Start at ``done`` of ``total`` units."""
        self._title, self._total, self._unit, self._is_main = title, total, unit, is_main
        self._first = self._done = done
        self._start = self._shown = time.monotonic()
        self._bar: tqdm[Any] | None = None
        if is_main and sys.stderr.isatty():
            file, title = unfiltered(sys.stderr), printable(title)
            # A bar inside another one vanishes when it is done (leave=None).
            self._bar = tqdm(
                desc=title, initial=done, total=total, unit=unit, dynamic_ncols=True, leave=None, file=file
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the bar."""
        if self._bar is not None:
            self._bar.close()

    def advance(self, count: int = 1, *, is_reported: bool = True) -> None:
        """Count finished units.

        Args:
            count: How many units.
            is_reported: Whether the caller calls `report` by itself; if not, a line is logged now and then.
        """
        self._done = min(self._done + count, self._total)
        if self._bar is not None:
            self._bar.update(count)
        now = time.monotonic()
        if not is_reported and now - self._shown >= QUIET_S:
            rate = (self._done - self._first) / max(now - self._start, 1e-9)
            left_s = (self._total - self._done) / rate
            self.report(self._done, f"{rate:,.0f} {self._unit}s/s", left_s=left_s)

    def report(self, done: int, text: str, *, left_s: float | None = None) -> None:
        """Show the interval's figures; the log file has a line of them in either case.

        Args:
            done: Units that are done.
            text: The figures.
            left_s: Seconds that are left of the whole work, if that is known.
        """
        self._shown = time.monotonic()
        left = "" if left_s is None else f", {span(left_s)} left"
        if self._bar is not None:
            self._bar.set_postfix_str(f"{text}{left}")
        if self._is_main:
            level = logging.INFO if self._bar is None else logging.DEBUG
            where = f"{self._title} {self._unit} {done:,}/{self._total:,} ({100 * done // max(self._total, 1)}%)"
            logger.log(level, "%s: %s%s", where, text, left)


def seconds_left(config: RunConfig, index: int, phase_step: int, sequences_per_s: float) -> float:
    """Return the seconds that a run's remaining steps take, a later phase being slower in proportion to its length.

    Args:
        config: The run.
        index: Number of the present phase.
        phase_step: Its steps that are made.
        sequences_per_s: Rate of the present phase.
    """
    present = config.phases[index]
    left = (present.num_instances - present.instances_of(phase_step)) / sequences_per_s
    for phase in config.phases[index + 1 :]:
        left += phase.num_instances / sequences_per_s * phase.max_seq_length / present.max_seq_length
    return left


def span(seconds: float) -> str:
    """Return a duration in its largest unit of which there are at least two."""
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.0f} s"


def pace(per_s: float) -> str:
    """Return a rate with two digits below ten: half a sequence per second is not none."""
    return f"{per_s:.2g}" if per_s < 10 else f"{per_s:,.0f}"
