"""A tracker: it gets each row of metrics, on rank 0, and shows it somewhere."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

Histogram = list[float]
Value = float | int | Histogram
COUNTERS = ("step", "phase", "phase_step")


class Tracker(Protocol):
    """Shows the rows of a run. A method may raise an OSError if the disk is full, and nothing else."""

    def note(self, title: str, lines: Sequence[str], step: int) -> None:
        """Show some lines of text."""

    def write(self, step: int, values: Mapping[str, Value]) -> None:
        """Take the values of a step."""

    def flush(self) -> None:
        """Hand on all rows, so that a process that is killed now loses no more than seconds."""

    def end(self) -> None:
        """Learn that no row will follow. All trackers are told before one is closed, so that they finish together."""

    def close(self) -> None:
        """Flush and end."""


def shown_name(tag: str) -> str:
    """Return the name of a tag in a tracker, which takes the part before the slash for a group."""
    return f"progress/{tag}" if tag in COUNTERS else tag


def leaves(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the fields of nested mappings by their paths; the items of a list are fields by their number."""
    for name, value in fields.items():
        inner = {str(i): item for i, item in enumerate(value)} if isinstance(value, list) else value
        if isinstance(inner, Mapping):
            yield from leaves(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", inner
