"""Names of fields: the one that a user meant by a mistyped one, and the value at a dotted path of them."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from pydantic_core import ArgsKwargs

from megabert.settings.config.yaml_text import own_yaml


@cache
def aliases() -> dict[str, list[str]]:
    """Return names in other programs, each with ours for the same thing in the order of preference."""
    table = own_yaml(__file__, "names_elsewhere.yaml")
    return {name: ours.split() for ours, names in table.items() for name in names.split()}


def closest(name: str, known: Sequence[str]) -> str | None:
    """Return the known name that a mistyped one is likely to mean; None if none is like it."""
    return next(iter(difflib.get_close_matches(name, known, n=1)), None)


def named_elsewhere(name: str, known: Sequence[str]) -> str | None:
    """Return the known path that an unknown one means by itself, or by its last part as other programs call it.

    Args:
        name: The unknown path; hyphens and capitals do not matter.
        known: The paths that there are, with underscores.
    """
    plain = name.replace("-", "_").lower()
    last = plain.rpartition(".")[2]
    for wanted in (plain, *aliases().get(last, ()), last):
        for path in known:
            if path == wanted or path.endswith(f".{wanted}"):
                return path
    return None


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """Return ``; did you mean X?`` for the known name that is meant, or the list of known names."""
    meant = named_elsewhere(name, known) or closest(name, known)
    return f"; did you mean {meant}?" if meant else f"; known are {', '.join(sorted(known))}"


def value_at(values: Any, path: str) -> Any:
    """Return the value at a dotted path of keys, and of numbers of elements of lists; None if there is none."""
    for part in path.split("."):
        if isinstance(values, list) and part.isdecimal() and int(part) < len(values):
            values = values[int(part)]
        else:
            values = values.get(part) if isinstance(values, Mapping) else None
    return values


def leaf_paths(fields: Mapping[str, Any], section: str = "") -> Iterator[str]:
    """Yield the dotted paths of nested values."""
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from leaf_paths(value, f"{section}{name}.")
        else:
            yield f"{section}{name}"


def given_fields(values: Any) -> dict[str, Any] | None:
    """Return the fields that are given to a validator of mode ``before``; None if pydantic will refuse them.

    The values that a validator returns are checked as Python's own: for a tuple, no list is accepted.
    """
    given = values.kwargs or {} if isinstance(values, ArgsKwargs) else values
    if not isinstance(given, dict):
        return None
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
