"""Masked language model targets for many instances at once (Devlin et al. 2019, section 3.1).

What happens to an instance is a function of its ids and its key alone, whatever it is batched with.
"""

# T tokens of all instances, I instances, M predictions of all instances

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megabert.errors import ConfigError, DataError
from megabert.masking.keyed_random import below, mix, stream, uniform
from megabert.masking.selection import BLOCK_ROWS, MAX_LENGTH, STRATEGIES, Candidates

# Draws under an instance's key: which positions, what happens to them, which piece replaces them.
_SELECT, _ACTION, _REPLACEMENT = 1, 2, 3


@dataclass(frozen=True, kw_only=True)
class MaskingOptions:
    """How instances are masked; the names are those of google-research/bert."""

    strategy: str = "token"
    """What is chosen as one: "token", "whole_word" or "span"."""
    masked_lm_prob: float = 0.15
    """Share of an instance's tokens, special ones counted, that is predicted."""
    max_predictions_per_seq: int = 20
    """Most predictions in one instance."""
    mask_share: float = 0.8
    """Share of the predicted tokens that becomes [MASK]."""
    random_share: float = 0.1
    """Share that becomes a piece drawn from the whole vocabulary; the rest stays as it is."""

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        if self.strategy not in STRATEGIES:
            raise ConfigError(f"masking.strategy={self.strategy!r} is unknown. Choose one of {', '.join(STRATEGIES)}.")
        if not 0 < self.masked_lm_prob < 1:
            raise ConfigError(f"masking.masked_lm_prob={self.masked_lm_prob} must lie between 0 and 1; BERT uses 0.15.")
        if self.max_predictions_per_seq < 1:
            raise ConfigError(
                f"masking.max_predictions_per_seq={self.max_predictions_per_seq} must be at least 1; "
                "BERT uses 20 for length 128 and 80 for 512."
            )
        if min(self.mask_share, self.random_share) < 0 or self.mask_share + self.random_share > 1 + 1e-9:
            raise ConfigError(
                f"masking.mask_share={self.mask_share} and masking.random_share={self.random_share} must be "
                "shares that add up to 1 at most; BERT uses 0.8 and 0.1."
            )


@dataclass(frozen=True, kw_only=True)
class PieceTable:
    """What masking knows of a vocabulary."""

    cls_id: int
    """Never predicted."""
    sep_id: int
    """Never predicted."""
    mask_id: int
    vocab_size: int
    """Random replacements are uniform over all ids below it, special ones included, as in google-research/bert."""
    is_subword: NDArray[np.bool_] | None = None
    """Boolean array by id, whether a piece continues a word; for strategies that work on words."""


@dataclass(frozen=True, kw_only=True)
class MaskedInstances:
    """Instances with their targets."""

    ids_T: NDArray[np.integer]
    """Ids after masking, in the dtype of the input."""
    positions_M: NDArray[np.int64]
    """Predicted positions, counted from the start of their instance, ascending within it."""
    original_ids_M: NDArray[np.integer]
    """Ids before masking at those positions, in the dtype of the input."""
    offsets: NDArray[np.int64]
    """Shape (I + 1,): instance i has the predictions ``offsets[i]`` to ``offsets[i + 1]``."""


def count_predictions(lengths: NDArray[np.integer], options: MaskingOptions) -> NDArray[np.int64]:
    """Return how many tokens google-research/bert predicts in instances of these lengths.

    Args:
        lengths: Tokens of an instance, its special ones included.
        options: The share and the cap.

    Returns:
        ``min(max_predictions_per_seq, max(1, round(length * masked_lm_prob)))``, halves rounded to even.
    """
    wanted = np.rint(np.asarray(lengths, dtype=np.float64) * options.masked_lm_prob).astype(np.int64)
    return np.minimum(options.max_predictions_per_seq, np.maximum(1, wanted))


def mask_instances(
    ids_T: NDArray[np.integer],
    offsets: NDArray[np.int64],
    *,
    keys: NDArray[np.uint64],
    pieces: PieceTable,
    options: MaskingOptions | None = None,
) -> MaskedInstances:
    """Choose tokens to predict and mask them.

    Args:
        ids_T: Ids of all instances end to end, ``[CLS] A [SEP] B [SEP]`` each.
        offsets: Int64 of shape (I + 1,): instance i is ``ids_T[offsets[i]:offsets[i + 1]]``.
        keys: Uint64 of shape (I,): one random key per instance, from `keyed_random.mix`.
        pieces: What must be known of the vocabulary.
        options: How to mask; BERT's values by default.

    Raises:
        DataError: Offsets and keys do not fit the ids, or an instance has 65,536 tokens or more.
    """
    options = options or MaskingOptions()
    _check(ids_T, offsets, keys)
    num_instances = len(keys)
    chosen_T = np.zeros(len(ids_T), dtype=bool)
    for first in range(0, num_instances, BLOCK_ROWS):
        last = min(first + BLOCK_ROWS, num_instances)
        block = slice(int(offsets[first]), int(offsets[last]))
        rows = slice(first, last)
        chosen_T[block] = _choose(ids_T[block], offsets[first : last + 1] - offsets[first], keys[rows], pieces, options)
    places_M = np.flatnonzero(chosen_T)
    instance_M = np.repeat(np.arange(num_instances), np.diff(offsets))[places_M]
    positions_M = places_M - offsets[instance_M]
    masked_T = np.array(ids_T)
    deciding_M = positions_M[_first_of_runs(places_M)] if options.strategy == "span" else positions_M
    masked_T[places_M] = _replace(
        ids_T[places_M], keys[instance_M], (deciding_M, positions_M), pieces=pieces, options=options
    )
    return MaskedInstances(
        ids_T=masked_T,
        positions_M=positions_M,
        original_ids_M=ids_T[places_M],
        offsets=np.searchsorted(places_M, offsets).astype(np.int64),
    )


def _check(ids_T: NDArray[np.integer], offsets: NDArray[np.int64], keys: NDArray[np.uint64]) -> None:
    lengths = np.diff(offsets)
    fits = len(offsets) == len(keys) + 1 and offsets[0] == 0 and offsets[-1] == len(ids_T)
    if not fits or np.any(lengths < 0):
        raise DataError(
            f"masking: {len(offsets)} offsets and {len(keys)} keys do not describe {len(ids_T)} tokens. Offsets "
            "ascend from 0 to the number of tokens, one more than there are instances; one key an instance."
        )
    if np.any(lengths >= MAX_LENGTH):
        raise DataError(
            f"masking: an instance has {int(lengths.max()):,} tokens; at most {MAX_LENGTH - 1:,} are allowed."
        )


def _choose(
    ids_T: NDArray[np.integer],
    offsets: NDArray[np.int64],
    keys_R: NDArray[np.uint64],
    pieces: PieceTable,
    options: MaskingOptions,
) -> NDArray[np.bool_]:
    lengths_R = np.diff(offsets)
    row_T = np.repeat(np.arange(len(keys_R)), lengths_R)
    is_candidate_T = (ids_T != pieces.cls_id) & (ids_T != pieces.sep_id)
    candidates_R = np.bincount(row_T[is_candidate_T], minlength=len(keys_R))
    block = Candidates(
        row_T=row_T,
        position_T=np.arange(len(ids_T)) - offsets[:-1][row_T],
        is_candidate_T=is_candidate_T,
        is_subword_T=None if pieces.is_subword is None else pieces.is_subword[ids_T],
        candidates_R=candidates_R,
        counts_R=np.minimum(count_predictions(lengths_R, options), candidates_R),
        keys_R=mix(keys_R, _SELECT),
    )
    return STRATEGIES[options.strategy](block)


def _replace(
    originals_M: NDArray[np.integer],
    keys_M: NDArray[np.uint64],
    positions_M: tuple[NDArray[np.int64], NDArray[np.int64]],
    *,
    pieces: PieceTable,
    options: MaskingOptions,
) -> NDArray[np.integer]:
    """Return what stands at predicted positions; each is drawn on its own, also within a word, but a span as one.

    Args:
        originals_M: Ids before masking.
        keys_M: Of the instances.
        positions_M: Which position's draw decides what happens, and the position itself.
        pieces: What must be known of the vocabulary.
        options: How to mask.
    """
    action_M = uniform(stream(mix(keys_M, _ACTION), positions_M[0]))
    replacement_M = stream(mix(keys_M, _REPLACEMENT), positions_M[1])
    random_M = below(replacement_M, pieces.vocab_size).astype(originals_M.dtype)
    is_mask_M = action_M < options.mask_share
    is_random_M = ~is_mask_M & (action_M < options.mask_share + options.random_share)
    mask_M = np.full_like(originals_M, pieces.mask_id)
    return np.where(is_mask_M, mask_M, np.where(is_random_M, random_M, originals_M))


def _first_of_runs(places_M: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each place the index of the first of the run of neighbours that it is in; a [SEP] ends a run."""
    is_first = np.concatenate([[True], np.diff(places_M) != 1])[: len(places_M)]
    return np.maximum.accumulate(np.where(is_first, np.arange(len(places_M)), 0))
