"""The fields of a configuration as a table: what flags may set, and what ``--help`` says of them."""

import dataclasses
import types
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import ConfigDict, Field
from pydantic.fields import FieldInfo

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
PackedTokens = Annotated[int, Field(ge=1, le=1 << 24)]
Seconds = Annotated[float, Field(gt=0, le=10**7)]
Rate = Annotated[float, Field(gt=0, le=1000)]
Weight = Annotated[float, Field(ge=0, le=1000)]
"""Coefficient of a term, such as weight decay; 0 leaves the term out."""
Norm = Annotated[float, Field(ge=0, le=10**9)]
Epsilon = Annotated[float, Field(gt=0, le=1)]


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
    """Types of its values; for a list, of its elements too; None is left out, a ``Literal`` is ``Literal``."""
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
        about = " ".join((info.description or "").split()) + _bound(info.metadata, info.annotation)
        choices, kinds = _choices(info.annotation), frozenset(_kinds(info.annotation))
        rows.append(FieldRow(path, default, about, choices, kinds, section, section_about))
    return rows


def _bound(metadata: Sequence[Any], annotation: Any) -> str:
    """Return a sentence with the upper bound of a number, nothing if it has none."""
    for item in metadata:
        for constraint in item.metadata if isinstance(item, FieldInfo) else [item]:
            for name, words in (("le", "At most"), ("lt", "Below")):
                most = getattr(constraint, name, None)
                if most is not None:
                    return f" {words} {most:,}." if isinstance(most, int) else f" {words} {most:g}."
    inner = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return _bound(inner[1:], inner[0])
    return next(filter(None, (_bound((), argument) for argument in inner)), "")


def _choices(annotation: Any) -> tuple[str, ...]:
    """Return the words that a ``Literal`` lists, perhaps inside a union or a tuple."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return next(filter(None, map(_choices, get_args(annotation))), ())


def _kinds(annotation: Any) -> set[Any]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kinds(arguments[0])
    if origin in (Union, types.UnionType):
        return set().union(*map(_kinds, arguments))
    if origin is tuple:
        return {tuple}.union(*(_kinds(element) for element in arguments if element is not ...))
    if origin is Literal:
        return {Literal}
    return {annotation} - {types.NoneType}
