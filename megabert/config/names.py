"""Names that a user mistyped, and those that were meant."""

import difflib
from collections.abc import Sequence


def closest(name: str, known: Sequence[str]) -> str | None:
    """Return the known name that a mistyped one is likely to mean; None if none is like it."""
    return next(iter(difflib.get_close_matches(name, known, n=1)), None)


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """Return ``; did you mean X?`` for the closest known name, or the list of known names."""
    meant = closest(name, known)
    return f"; did you mean {meant}?" if meant else f"; known are {', '.join(sorted(known))}"
