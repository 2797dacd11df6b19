"""What goes to a terminal: whatever a name, a text or a record of others holds, it cannot steer the terminal.

``with safe_output():`` puts a filter before standard output and error, so that no print, log line or traceback has to
think of it. Only output that steers the terminal on purpose, such as a progress bar, goes past the filter.
"""

import gc
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Control characters but tab and line feed, other line ends, and what turns the direction of writing."""


def printable(text: str) -> str:
    r"""Return a text in which what would steer a terminal is written as in Python: ESC becomes ``\x1b``."""
    return _STEERING.sub(lambda match: ascii(match[0])[1:-1], text)


class _Filter:
    """A text stream that writes through `printable`; everything else is the stream's own."""

    def __init__(self, stream: Any, name: str) -> None:
        self.unfiltered, self._name = stream, name

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unfiltered, name)

    def write(self, text: str) -> int:
        with _naming(self._name):
            self.unfiltered.write(printable(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        self.write("".join(lines))

    def flush(self) -> None:
        with _naming(self._name):
            self.unfiltered.flush()


@contextmanager
def _naming(place: str) -> Iterator[None]:
    """Let an error, such as a full disk of ``> FILE``, name the stream."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or place
        raise


def unfiltered(stream: Any) -> Any:
    """Return a stream without its filter, for output that steers the terminal on purpose."""
    return getattr(stream, "unfiltered", stream)


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Announce a library that is being loaded on a terminal, and erase the line once it is there."""
    stream = unfiltered(sys.stderr)
    begin, end = (f"loading {what} ...", "\r\x1b[K") if stream.isatty() else ("", "")
    print(begin, end="", file=stream, flush=True)
    gc.disable()  # imports leave next to nothing to collect, and the search takes a fifth of their time
    try:
        yield
    finally:
        gc.enable()
        print(end, end="", file=stream, flush=True)


@contextmanager
def safe_output() -> Iterator[None]:
    """Filter standard output and error, and let them take every character, whatever their encoding."""
    before = sys.stdout, sys.stderr
    open_closed()
    sys.stdout = _Filter(unfiltered(sys.stdout), "standard output")  # type: ignore[assignment]
    sys.stderr = _Filter(unfiltered(sys.stderr), "standard error")  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.stdout, sys.stderr = (old or unfiltered(sys.stdout) for old in before)


def open_closed() -> None:
    """Open /dev/null in place of closed standard streams (``>&-``): the next file opened would get their number."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # else a word in Greek ends the command where the encoding is ASCII
            stream.reconfigure(errors="backslashreplace")
