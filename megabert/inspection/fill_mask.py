"""Guesses for [MASK] in a text: of a model, and of the unigram predictor as its baseline."""

# M masked positions, V vocabulary

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from megabert.data.sequences import pack_sequences
from megabert.errors import ConfigError
from megabert.inspection.encode_text import encode_text, evaluating
from megabert.models.build import PretrainingModel
from megabert.tokenization import Tokenizer


@dataclass(frozen=True)
class Guess:
    """A piece that may stand for a [MASK]."""

    piece: str
    """As in the vocabulary; ``##`` marks a continued word."""
    probability: float
    """In [0, 1]."""


@torch.no_grad()
def fill_mask(model: PretrainingModel, tokenizer: Tokenizer, text: str, *, top_k: int = 5) -> list[list[Guess]]:
    """Guess each ``[MASK]`` of a text, all at once.

    Args:
        model: On any device, in any precision; its mode is left as it was.
        tokenizer: Of the model.
        text: With one mask or more, written as in the vocabulary.
        top_k: Guesses a mask.

    Returns:
        For each mask, from left to right, its guesses, best first.

    Raises:
        ConfigError: The text has no mask, or is longer than the model's positions.
    """
    ids = encode_text(tokenizer, text, limit=model.config.max_position_embeddings).ids
    if tokenizer.special_ids.mask not in ids:
        raise ConfigError(f"the text {text!r} has no {tokenizer.names.mask} to fill. Put one where a word is missing.")
    batch = pack_sequences([ids], mask_id=tokenizer.special_ids.mask).to(next(model.parameters()).device)
    with evaluating(model):
        logits_MV = model(batch, with_logits=True).mlm_logits_MV[:, : tokenizer.vocab_size]
    probabilities_MV = torch.softmax(logits_MV.float(), -1).cpu().numpy()
    return [_best(probabilities_V, tokenizer, top_k) for probabilities_V in probabilities_MV]


def unigram_guesses(counts_V: NDArray[np.int64], tokenizer: Tokenizer, *, top_k: int = 5) -> list[Guess]:
    """Guess by frequency alone: the same for every mask of every text.

    Args:
        counts_V: How often each id was a training target, smoothed or not.
        tokenizer: Of the model.
        top_k: Guesses.
    """
    return _best(counts_V / counts_V.sum(), tokenizer, top_k)


def render_guesses(text: str, guesses: Mapping[str, Sequence[Sequence[Guess]]]) -> str:
    """Return a plain-text table of guesses side by side.

    Args:
        text: The text with its masks.
        guesses: Per column (such as ``unigram``, ``untrained``, ``trained``) the guesses for each mask.
    """
    blocks = [text]
    masks = max(len(column) for column in guesses.values())
    for mask in range(masks):
        columns = [
            [name, *(f"{guess.piece} {100 * guess.probability:.1f}%" for guess in column[mask])]
            for name, column in guesses.items()
        ]
        if masks > 1:
            blocks.append(f"  mask {mask + 1}")
        widths = [max(map(len, column)) for column in columns]
        for row in zip(*columns, strict=True):
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            blocks.append("  " + "  ".join(cells).rstrip())
    return "\n".join(blocks)


def _best(probabilities_V: NDArray[np.floating], tokenizer: Tokenizer, top_k: int) -> list[Guess]:
    order = np.argsort(-probabilities_V, kind="stable")[:top_k]
    return [Guess(tokenizer.pieces[index], float(probabilities_V[index])) for index in order]
