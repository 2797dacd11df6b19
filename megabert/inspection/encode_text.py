"""Texts as a model reads them: special pieces are added, a written [MASK] becomes the mask, the length is checked."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from megabert.errors import CheckpointError, ConfigError
from megabert.models.convert import is_finite
from megabert.tokenization import Tokenizer


class Encoded(NamedTuple):
    """One text, or a pair of texts, as ids."""

    ids: NDArray[np.int64]
    """``[CLS] a [SEP]`` or ``[CLS] a [SEP] b [SEP]``; RoBERTa puts two separators between the texts."""
    segment_b_start: int
    """Index of b's first token; the number of ids where there is no b."""


def encode_text(tokenizer: Tokenizer, text: str, second: str | None = None, *, limit: int) -> Encoded:
    """Return a text, or a pair of texts, as ids; a mask written as in the vocabulary becomes the mask's id.

    Args:
        tokenizer: The model's tokenizer.
        text: First text.
        second: Second text.
        limit: Number of positions that the model has.

    Raises:
        ConfigError: There are more ids than positions.
    """
    special = tokenizer.special_ids
    ids = [special.cls, *_with_masks(tokenizer, text), special.sep]
    if second is not None:
        ids += [special.sep] * (tokenizer.separators_in_pair - 1)
    segment_b_start = len(ids)
    if second is not None:
        ids += [*_with_masks(tokenizer, second), special.sep]
    if len(ids) > limit:
        raise ConfigError(f"the text has {len(ids)} tokens, the model positions for {limit}. Shorten the text.")
    return Encoded(np.array(ids, dtype=np.int64), segment_b_start)


def check_outputs(values: Tensor) -> Tensor:
    """Return what a model computed.

    Raises:
        CheckpointError: It holds NaN or infinite numbers, which say nothing.
    """
    if not is_finite(values):
        raise CheckpointError(
            "the model's outputs for this text are NaN or infinite: its weights are damaged, or have diverged. Take "
            "another model or checkpoint."
        )
    return values


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch dropout off while the block runs, then restore the model's mode."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


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
