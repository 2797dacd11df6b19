"""The values of a row of metrics, and their names in trackers."""

from collections.abc import Iterator, Mapping
from typing import Any

Histogram = list[float]
Value = float | int | Histogram
COUNTERS = ("step", "phase", "phase_step")


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


def scalar_leaves(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of nested mappings as numbers and text, which trackers show next to the curves."""
    return {name: value if isinstance(value, bool | int | float) else str(value) for name, value in leaves(fields)}
