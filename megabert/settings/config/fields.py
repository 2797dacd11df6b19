"""The fields of a configuration as a table: what flags may set, and what ``--help`` says of them."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from pydantic import ConfigDict, Field

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True, str_min_length=1)
"""How every configuration dataclass is validated: no unknown keys, finite numbers, no empty text."""


MAX_COUNT = 10**9
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
"""Steps, instances or examples: no run has more than a billion of them."""
CountOrNone = Annotated[int, Field(ge=0, le=MAX_COUNT)]
"""The same, with 0 for none or for all of them."""
Instances = Annotated[int, Field(ge=1, le=10**6)]
"""Instances of a batch, whose order and lengths every rank has in memory."""
SequenceLength = Annotated[int, Field(ge=8, le=1 << 20)]
SourceName = Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
"""Name of a source of data, a part of a metric's tag: letters, digits, - and _."""
PackedTokens = Annotated[int, Field(ge=1, le=1 << 24)]
Seconds = Annotated[float, Field(gt=0, le=10**7)]
Rate = Annotated[float, Field(gt=0, le=1000)]
Weight = Annotated[float, Field(ge=0, le=1000)]
"""Coefficient of a term, such as weight decay; 0 leaves the term out."""
Norm = Annotated[float, Field(ge=0, le=10**9)]
Epsilon = Annotated[float, Field(gt=0, le=1)]


def refuse(*rules: Iterable[str]) -> None:
    """Raise a ValueError with the first problem that any of a configuration's rules finds."""
    for problem in chain.from_iterable(rules):
        raise ValueError(problem)


class FieldRow(NamedTuple):
    """One field."""

    path: str
    """Dotted path; an element of a list is numbered N."""
    default: Any
    """Default value; ``required`` if there is none."""
    about: str
    """Documentation, in one line."""
    choices: tuple[str, ...]
    """The words that it takes; empty if it is no choice among words."""
    kinds: frozenset[Any]
    """Types of its values; for a list, of its elements too; None is left out, a ``Literal`` is ``Literal``, a
    mapping ``dict`` alone."""
    section: str
    """Path of the section that holds it, empty at the top."""
    section_about: str
    """What that section is about."""

    @property
    def is_boolean(self) -> bool:
        """Whether it is true or false."""
        return self.kinds == {bool}

    @property
    def is_list(self) -> bool:
        """Whether it takes several values."""
        return tuple in self.kinds

    @property
    def is_text(self) -> bool:
        """Whether its values, or its elements, are free text."""
        return self.kinds - {tuple} == {str}


def pattern_of(path: str) -> str:
    """Return a path with N in place of the numbers of elements, as `field_table` has it."""
    return ".".join("N" if part.isdecimal() else part for part in path.split("."))


def field_table(cls: type, section: str = "") -> list[FieldRow]:
    """Return a row for every field of a pydantic dataclass, its sections expanded."""
    rows: list[FieldRow] = []
    section_about = (cls.__doc__ or "").partition("\n")[0]  # PYTHONOPTIMIZE=2 takes docstrings away
    for name, info in cls.__pydantic_fields__.items():  # type: ignore[attr-defined]
        path = f"{section}.{name}" if section else name
        element = next((a for a in get_args(info.annotation) if dataclasses.is_dataclass(a)), None)
        inner = element if get_origin(info.annotation) is tuple else info.annotation
        if inner is not None and dataclasses.is_dataclass(inner):
            rows += field_table(inner, f"{path}.N" if element else path)  # type: ignore[arg-type]
            continue
        default = "required" if info.is_required() else info.get_default(call_default_factory=True)
        parts = [*info.metadata, *_parts_of(info.annotation)]
        about = " ".join((info.description or "").split()) + _describe_bound(parts)
        choices: tuple[str, ...] = next((get_args(part) for part in parts if get_origin(part) is Literal), ())
        kinds = {get_origin(part) or part for part in parts} & {int, float, str, bool, tuple, Literal, dict}
        kinds = {dict} if dict in kinds else kinds  # of a mapping the flag takes all of it, as YAML has it
        rows.append(FieldRow(path, default, about, choices, frozenset(kinds), section, section_about))
    return rows


def _parts_of(annotation: Any) -> Iterator[Any]:
    """Yield a type, all types inside it, and the constraints of numbers."""
    yield annotation
    for inner in () if get_origin(annotation) in (Literal, dict) else get_args(annotation):
        yield from _parts_of(inner)


def _describe_bound(parts: Sequence[Any]) -> str:
    """Return a sentence with the upper bound of a number, nothing if it has none."""
    for constraint in (constraint for part in parts for constraint in getattr(part, "metadata", [part])):
        for name, words in (("le", "At most"), ("lt", "Below")):
            most = getattr(constraint, name, None)
            if most is not None:
                return f" {words} {most:,}." if isinstance(most, int) else f" {words} {most:g}."
    return ""
