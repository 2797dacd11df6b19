"""What units count, and how the counts of a million units become one: one after the other, in constant memory."""

from collections.abc import Iterable
from copy import deepcopy
from typing import Annotated, Any

from pydantic import AfterValidator

from data_prep.extract.opening import EXAMPLES
from megabert.errors import DataError

TEXTS = ("report", "examples")
"""Keys of counts that hold texts; all others hold numbers."""


MOST = 1 << 56
"""More than a unit can count; a larger number is damage."""


def _require_numbers(counts: dict[str, Any]) -> dict[str, Any]:
    """Return counts that can be added up.

    Raises:
        ValueError: A value is no number, or none that can be counted.
    """
    for key, value in counts.items():
        if key not in TEXTS and not _holds_numbers(value):
            raise ValueError(f"{key} holds no number")
    return counts


def _holds_numbers(value: Any) -> bool:
    if isinstance(value, dict | list):
        return all(map(_holds_numbers, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int | float) and 0 <= value <= MOST


Counts = Annotated[dict[str, Any], AfterValidator(_require_numbers)]
"""What a unit counted: numbers, lists of numbers, texts, and mappings of these, which a `Tally` adds up."""


class Tally:
    """Adds up the counts of units: numbers are added, lists element by element, mappings key by key.

    The sum is the same in any order. Of the examples of a rule, which are named in the order of the input, only the
    first few are kept: all of those of a large corpus would fill the memory of one process.
    """

    def __init__(self, groups: dict[str, Counts] | None = None) -> None:
        """Begin with nothing, or with the sums of some units by group."""
        self.groups: dict[str, Counts] = groups or {}
        """Sum of each group of units, keys in the order in which they came."""

    def add(self, counts: Counts, group: str = "") -> None:
        """Add the counts of one unit, or of several that are added up already."""
        total = self.groups.setdefault(group, {})
        examples = counts.get("examples")
        _add_to(total, counts)
        for rule in examples or ():
            named = total["examples"][rule]
            for name in sorted(named)[EXAMPLES:]:
                del named[name]

    def merge(self, other: "Tally") -> None:
        """Add all that another tally has."""
        for group, counts in other.groups.items():
            self.add(counts, group)

    def of(self, group: str = "") -> Counts:
        """Return the sum of a group, its keys sorted, so that nothing tells which unit was finished first."""
        return _sorted(self.groups.get(group, {}))


def add_counts(parts: Iterable[Counts]) -> Counts:
    """Return the sum of counts."""
    tally = Tally()
    for counts in parts:
        tally.add(counts)
    return tally.of()


def _sorted(value: Any) -> Any:
    return {key: _sorted(value[key]) for key in sorted(value)} if isinstance(value, dict) else value


def _add_to(total: dict[str, Any], counts: dict[str, Any]) -> None:
    # In place: a copy of the sum for each of a million units would take time with the square of their number.
    for key, value in counts.items():
        earlier = total.get(key)
        if earlier is None:
            total[key] = deepcopy(value) if isinstance(value, dict | list) else value
        elif isinstance(earlier, dict) and isinstance(value, dict):
            _add_to(earlier, value)
        elif isinstance(earlier, list) and isinstance(value, list) and len(earlier) == len(value):
            total[key] = [a + b for a, b in zip(earlier, value, strict=True)]
        elif isinstance(earlier, dict | list) or isinstance(value, dict | list):
            raise DataError(
                f"Two units counted {key} over different bins: their records are damaged. Build in a new folder."
            )
        else:
            total[key] = earlier + value
