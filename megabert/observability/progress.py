"""Progress of a phase: a bar with rate and time left on a terminal, else one line per logging interval."""

import logging
import sys
from typing import Any

from tqdm import tqdm

from megabert.observability.logs import logger


class Progress:
    """Shows steps of one phase at rank 0; silent on the other ranks."""

    def __init__(self, *, title: str, done: int, total: int, is_main: bool) -> None:
        """Start at ``done`` of ``total`` steps."""
        self._title, self._total, self._is_main = title, total, is_main
        self._bar: tqdm[Any] | None = None
        if is_main and sys.stderr.isatty():
            self._bar = tqdm(desc=title, initial=done, total=total, unit="step", dynamic_ncols=True, file=sys.stderr)

    def advance(self) -> None:
        """Count one step."""
        if self._bar is not None:
            self._bar.update(1)

    def report(self, done: int, text: str) -> None:
        """Show the interval's figures; the log file has a line of them in either case."""
        if self._bar is not None:
            self._bar.set_postfix_str(text)
        if self._is_main:
            level = logging.INFO if self._bar is None else logging.DEBUG
            logger.log(level, "%s step %d/%d: %s", self._title, done, self._total, text)

    def close(self) -> None:
        """End the bar."""
        if self._bar is not None:
            self._bar.close()
