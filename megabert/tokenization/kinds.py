"""The kinds of tokenizer that are read, described by data: WordPiece, byte-level BPE and Unigram."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from megabert.errors import DataError
from megabert.tokenization.backend import CONTINUATION
from megabert.tokenization.special_tokens import SpecialNames

Pieces = Literal["wordpiece", "byte_bpe"]
"""Kinds that can be trained; ``unigram`` is only read."""
SPACE_BYTE = "\u0120"
"""The character that byte-level BPE writes for a space: a piece that begins with it begins a word."""
SPACE_MARK = "\u2581"
"""The character that SentencePiece writes for a space."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Properties of a kind of tokenizer: its model, and how its pieces are written."""

    name: str
    model: type
    """Class of the `tokenizers` model."""
    names: SpecialNames
    """Usual spelling of its special pieces."""
    continues_word: Callable[[str], bool]
    """Whether a piece continues a word."""
    identity: tuple[str, ...]
    """Settings of the model that determine ids, in addition to the pieces."""
    decoder: Any = None
    """Decoder to use instead of the file's own; None keeps that."""
    keeps_spaces: bool = False
    """Whether the space before a word is part of its first piece, so that text cannot be cut at spaces unmarked."""


ROBERTA_NAMES = SpecialNames(pad="<pad>", unk="<unk>", cls="<s>", sep="</s>", mask="<mask>")

WORDPIECE = Kind(
    name="wordpiece",
    model=models.WordPiece,
    names=SpecialNames(),
    continues_word=lambda piece: piece.startswith(CONTINUATION),
    identity=("unk_token", "continuing_subword_prefix", "max_input_chars_per_word"),
    # The stock clean-up rewrites text on decoding: " do not" becomes " don't".
    decoder=decoders.WordPiece(prefix=CONTINUATION, cleanup=False),
)
BYTE_BPE = Kind(
    name="byte_bpe",
    model=models.BPE,
    names=ROBERTA_NAMES,
    continues_word=lambda piece: not piece.startswith(SPACE_BYTE),
    identity=("merges", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback"),
    keeps_spaces=True,
)
UNIGRAM = Kind(
    name="unigram",
    model=models.Unigram,
    names=SpecialNames(pad="<pad>", unk="<unk>"),
    continues_word=lambda piece: not piece.startswith(SPACE_MARK),
    identity=("vocab", "unk_id", "byte_fallback"),
)


def kind_of(backend: tokenizers.Tokenizer, where: str) -> Kind:
    """Return the kind of a tokenizer.

    Raises:
        DataError: The tokenizer is of another kind, or of a variant that BERT and its relatives do not use.
    """
    model = backend.model
    for kind in (WORDPIECE, BYTE_BPE, UNIGRAM):
        if isinstance(model, kind.model) and _is_usual(backend, kind):
            return kind
    raise DataError(
        f"{where}: the model is {type(model).__name__}, or in a form that BERT and its relatives do not use; supported "
        f"are WordPiece with {CONTINUATION!r}, byte-level BPE and Unigram. Give the tokenizer of such a model."
    )


def _is_usual(backend: tokenizers.Tokenizer, kind: Kind) -> bool:
    if kind is WORDPIECE:
        return bool(backend.model.continuing_subword_prefix == CONTINUATION)
    if kind is BYTE_BPE:
        return isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel)
    return True
