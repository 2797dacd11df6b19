"""Types and bounds of a ``tokenizer.json``, checked before `tokenizers` reads it: some files abort that library."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag
from tokenizers import AddedToken

from megabert.foundation.errors import DataError
from megabert.foundation.files import read_small
from megabert.foundation.json_files import parse_json

LONGEST_PIECE = 4096
"""Characters of a piece; `tokenizers` overflows its stack at some 100,000. No known vocabulary has one above 300."""
MOST_TEXT_STEPS = 64
"""Normalizers, pre-tokenizers and decoders of a file, each."""
MOST_GROWTH = 64
"""How many times longer its normalizers, or its decoders, may make a text, all together."""
_GROWTH = {"Precompiled": 18, "ByteLevel": 2}
"""The most characters for one: NFKC makes 18 of U+FDFA; byte-level writes a character for each byte."""
REMEDY = "Fetch the tokenizer again."

PieceText = Annotated[str, Field(max_length=LONGEST_PIECE)]
Id = Annotated[int, Field(ge=0, lt=2**31)]


@dataclass(frozen=True)
class AddedPiece:
    """A piece that was added to a vocabulary, with `tokenizers`' names and defaults."""

    content: Annotated[PieceText, Field(min_length=1)]
    id: Id = -1
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool | None = None
    special: bool = False

    def as_token(self) -> AddedToken:
        """Return the form that `tokenizers` takes."""
        flags = {name: getattr(self, name) for name in ("single_word", "lstrip", "rstrip", "special")}
        return AddedToken(
            self.content, normalized=not self.special if self.normalized is None else self.normalized, **flags
        )


@dataclass(frozen=True)
class _Model:
    vocab: Annotated[
        Annotated[list[tuple[PieceText, Annotated[float, Field(allow_inf_nan=False)]]], Tag("scores")]
        | Annotated[dict[PieceText, Id], Tag("ids")],
        Discriminator(lambda value: "scores" if isinstance(value, list) else "ids"),
    ]
    dropout: float | None = None


@dataclass(frozen=True)
class TokenizerJson:
    """The fields that are checked here; `tokenizers` checks the others."""

    model: _Model
    added_tokens: list[AddedPiece] = field(default_factory=list)
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None
    decoder: dict[str, Any] | None = None


def read_tokenizer_json(path: Path) -> tuple[str, TokenizerJson]:
    """Return the text of a ``tokenizer.json``, and its checked fields.

    Raises:
        DataError: A field has another type, or is out of bounds.
    """
    content = read_small(path)
    checked = parse_json(content, TokenizerJson, where=str(path), remedy=REMEDY)
    if checked.model.dropout:
        raise DataError(
            f"{path}: model.dropout is {checked.model.dropout}, so that the same text would get other ids each time. "
            "Set it to null."
        )
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        _check_steps(list(_steps(getattr(checked, name))), f"{path}: {name}")
    return content.decode(), checked


def _steps(part: Any) -> Iterator[dict[str, Any]]:
    """Yield the steps of a normalizer, a pre-tokenizer or a decoder, without the sequences around them."""
    if isinstance(part, dict):
        inner = [value for name in ("normalizers", "pretokenizers", "decoders") for value in part.get(name) or ()]
        yield from (part,) if not inner else (step for one in inner for step in _steps(one))


def _check_steps(steps: list[dict[str, Any]], where: str) -> None:
    growth = 1.0
    for step in steps:
        pattern = step.get("pattern")
        shortest = len(str(pattern.get("String") or "")) if isinstance(pattern, dict) else 1
        content = len(str(step.get("content") or step.get("prepend") or ""))
        growth *= max(1.0, content / max(1, shortest), _GROWTH.get(str(step.get("type")), 1))
        if content > LONGEST_PIECE or growth > MOST_GROWTH or len(steps) > MOST_TEXT_STEPS:
            raise DataError(
                f"{where}: has {len(steps):,} steps, which can make a text {growth:,.0f} times longer; up to "
                f"{MOST_TEXT_STEPS} and {MOST_GROWTH} times are read. Remove steps that insert text. {REMEDY}"
            )


def steps_of(part: Any) -> dict[str, dict[str, Any]]:
    """Return the steps of a part of a ``tokenizer.json`` by their types."""
    return {str(step.get("type")): step for step in _steps(part)}
