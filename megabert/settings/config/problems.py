"""Wrong values of a configuration in words: field, value, allowed values, file."""

import re
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from megabert.settings.config.fields import field_table, pattern_of
from megabert.settings.config.names import closest, did_you_mean, named_elsewhere


class FileValues(dict[str, Any]):
    """The values of a user's file, and its path, for errors that are found after layers were merged."""

    def __init__(self, values: dict[str, Any], path: Path) -> None:
        super().__init__(values)
        self.path = path


def describe_problems(errors: Sequence[Any], cls: type, layers: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each field that is wrong.

    Args:
        errors: What pydantic says of the merged layers.
        cls: The configuration, a pydantic dataclass.
        layers: The layers, of which a later one wins.
    """
    return [
        f"  {_describe(problem, cls)}{_origin(problem['loc'], layers)}"
        for problem in _one_for_each_field(_innermost(errors), cls)
    ]


def to_plain(value: Any) -> Any:
    """Return a path as a text, a number of numpy or torch as one of Python, and another value as it is."""
    if isinstance(value, PathLike):
        return str(value)
    return value.item() if getattr(value, "shape", None) == () else value


def unfit_values(values: Any, where: str = "") -> Iterator[str]:
    """Yield a line for each value that no file could hold: a text that is no UTF-8 or has a NUL, and other objects."""
    values = to_plain(values)
    if isinstance(values, str) and re.search("[\0\ud800-\udfff]", values):
        yield f"  {where[:-1]}: has a character that is no text (found {ascii(values)[:100]}); leave it out"
    elif isinstance(values, Mapping):
        for key, value in values.items():
            yield from (*unfit_values(key, where), *unfit_values(value, f"{where}{key}."))
    elif isinstance(values, list | tuple):
        for index, value in enumerate(values):
            yield from unfit_values(value, f"{where}{index}.")
    elif not isinstance(values, str | int | float | None):
        kind = type(values).__name__
        yield f"  {where[:-1]}: is no number, text, list or mapping (found {ascii(values)[:100]}, a {kind}); give one"


def _innermost(problems: Sequence[Any]) -> list[Any]:
    """Drop what pydantic says of a list only because its elements are wrong."""
    paths = [problem["loc"] for problem in problems]
    return [p for p in problems if not any(len(q) > len(p["loc"]) and q[: len(p["loc"])] == p["loc"] for q in paths)]


def _one_for_each_field(problems: list[Any], cls: type) -> list[Any]:
    """Join what pydantic says of each type that a field may have: it calls them ``vocab_size.int`` and the like."""
    fields = {row.path for row in field_table(cls)}
    joined: dict[tuple[Any, ...], Any] = {}
    for problem in problems:
        loc, numbered = problem["loc"], ["N" if isinstance(part, int) else str(part) for part in problem["loc"]]
        end = next((end for end in range(len(loc)) if ".".join(numbered[:end]) in fields), len(loc))
        loc = (*loc[:end], *(part for part in loc[end:] if isinstance(part, int)))
        if loc in joined:
            joined[loc]["msg"] += f" or {problem['msg'].removeprefix('Input should be ')}"
        else:
            joined[loc] = {**problem, "loc": loc}
    return list(joined.values())


def _origin(loc: Sequence[Any], layers: Sequence[Mapping[str, Any]]) -> str:
    """Return the file that a field's value comes from, as the end of a line; nothing for flags and defaults."""
    for layer in reversed(layers):
        inner: Any = layer
        try:
            for part in loc:  # a flag names an element of a list by a key: --phases.0.steps
                inner = inner[str(part) if isinstance(inner, Mapping) else part]
        except (LookupError, TypeError):
            continue
        return f", in {layer.path}" if isinstance(layer, FileValues) else ""
    return ""


def _describe(problem: Any, cls: type) -> str:
    path = ".".join(str(part) for part in problem["loc"])
    if problem["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        section, _, name = path.rpartition(".")
        known = [row.path for row in field_table(cls)]
        # Suggest from the fields of the same section; in the table an element of a list is numbered N.
        prefix = f"{pattern_of(section)}." if section else ""
        names = sorted({row[len(prefix) :].split(".")[0] for row in known if row.startswith(prefix)})
        others = "" if section else " (flags that are no fields, such as --run-dir, are in --help)"
        # A name like none of these may be one of another section: learning_rate is a phase's.
        elsewhere = {row.rpartition(".")[2]: row.replace(".N.", ".0.") for row in reversed(known)}
        anywhere = [row.replace(".N.", ".0.") for row in known]
        # A name of other programs counts before letters that are alike, in another section as well.
        fields = [each for each in names if f"{prefix}{each}" in known]
        meant = named_elsewhere(name, fields) or named_elsewhere(name, anywhere) or closest(name, names)
        meant = meant or elsewhere.get(closest(name, list(elsewhere)) or "")
        hint = f"; did you mean {meant}?" if meant else did_you_mean(name, names)
        return f"{path}: unknown field{hint}{others}"
    message = problem["msg"].removeprefix("Value error, ")
    if not path:  # a rule of the whole, which names its fields
        return message
    if problem["type"] == "missing":
        return f"{path}: is missing; set it (as a flag: --{path.replace('_', '-')})"
    if problem["type"] == "tuple_type":
        message = f"is a list; write it in brackets, [{problem['input']}]"
    found = f" (found {problem['input']!r})"
    remedy = "; write text in quotes" if problem["type"] == "string_type" else ""
    return f"{path}: {message}{found if len(found) < 200 else ''}{remedy}"
