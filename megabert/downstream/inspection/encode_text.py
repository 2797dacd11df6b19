"""The steps that several ways of looking at a model share: a text as ids, texts in batches, the best pieces.

A text gets its special pieces, a written [MASK] becomes the mask, and the length is checked.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from megabert.data.batch import MicroBatch, pack_sequences
from megabert.foundation.errors import CheckpointError, ConfigError
from megabert.models.bert import PretrainingModel
from megabert.models.convert import is_finite
from megabert.tokens.tokenization import Tokenizer
from megabert.tokens.tokenization.written import readable_pieces


class Encoded(NamedTuple):
    """One text, or a pair of texts, as ids."""

    ids: NDArray[np.int64]
    """``[CLS] a [SEP]`` or ``[CLS] a [SEP] b [SEP]``; RoBERTa puts two separators between the texts."""
    segment_b_start: int
    """Index of b's first token; without b, the number of ids."""


def encode_text(tokenizer: Tokenizer, text: str, second: str | None = None, *, limit: int) -> Encoded:
    """Return a text, or a pair of texts, as ids; a mask written as in the vocabulary becomes the mask's id.

    Args:
        tokenizer: The model's tokenizer.
        text: First text.
        second: Second text.
        limit: Most ids that the model reads.

    Raises:
        ConfigError: There are more ids.
    """
    b = None if second is None else _with_masks(tokenizer, second)
    ids, segment_b_start = tokenizer.join(_with_masks(tokenizer, text), b)
    if len(ids) > limit:
        most = f"the model reads {limit} at most: its positions, or its longest length in training"
        raise ConfigError(f"the text has {len(ids)} tokens, and {most}. Shorten the text.")
    return Encoded(ids.astype(np.int64), segment_b_start)


def pack_text(
    model: PretrainingModel, tokenizer: Tokenizer, text: str, second: str | None = None, *, longest: int | None = None
) -> tuple[Encoded, MicroBatch]:
    """Return a text, or a pair of texts, as ids and as a batch on the model's device, whose masks are to be guessed.

    Raises:
        ConfigError: There are more than ``longest`` ids, or than the model has positions.
    """
    config = model.config
    encoded = encode_text(tokenizer, text, second, limit=longest or config.max_position_embeddings)
    starts = [encoded.segment_b_start] if config.type_vocab_size > 1 else None
    batch = pack_sequences([encoded.ids], segment_b_starts=starts, mask_id=tokenizer.special_ids.mask)
    return encoded, batch.to(next(model.parameters()).device)


def check_outputs(values: Tensor) -> Tensor:
    """Return a model's outputs.

    Raises:
        CheckpointError: They hold NaN or infinite numbers, which say nothing.
    """
    if not is_finite(values):
        raise CheckpointError(
            "the model's outputs for this text are NaN or infinite: its weights are damaged, or have diverged. Take "
            "another model or checkpoint."
        )
    return values


class RankedPiece(NamedTuple):
    """A piece among the best ones of a vocabulary."""

    piece: str
    """The piece as people read it (`readable_pieces`)."""
    score: float
    """Its probability in [0, 1], or its cosine in [-1, 1]."""


def best_pieces(scores_V: NDArray[np.floating], tokenizer: Tokenizer, top_k: int) -> list[RankedPiece]:
    """Return the pieces with the highest scores, best first; minus infinity leaves a piece out."""
    order = np.argsort(-scores_V, kind="stable")[:top_k]
    order = order[np.isfinite(scores_V[order])]
    pieces = readable_pieces(tokenizer, order.tolist())
    return [RankedPiece(piece, float(scores_V[index])) for piece, index in zip(pieces, order, strict=True)]


def _with_masks(tokenizer: Tokenizer, text: str) -> list[int]:
    """Encode the text between the masks, because the tokenizer reads a literal ``[MASK]`` as plain text.

    A mask takes the spaces before it, as the word that it replaces would.
    """
    *before, last = text.split(tokenizer.names.mask)
    first, *others = tokenizer.encode_batch([*(part.rstrip() for part in before), last])
    ids = [*first]
    for part in others:
        ids += [tokenizer.special_ids.mask, *part]
    return ids
