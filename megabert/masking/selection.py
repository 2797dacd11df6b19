"""Which positions of an instance are predicted: one function a strategy, over many instances at once."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megabert.masking.keyed_random import stream

# Bits of a sort key: row in the block, random order, position (which makes the key unique).
_POSITION_BITS = np.uint64(16)
_ROW_BITS = np.uint64(12)
BLOCK_ROWS = 1 << 12
MAX_LENGTH = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """A block of at most `BLOCK_ROWS` instances, flattened; T tokens, R rows."""

    row_T: NDArray[np.int64]
    """Row of each token."""
    position_T: NDArray[np.int64]
    """Position of each token in its instance."""
    is_candidate_T: NDArray[np.bool_]
    """Whether a token may be predicted."""
    is_subword_T: NDArray[np.bool_] | None
    """Whether a token continues a word; None where the strategy does not ask."""
    starts_R: NDArray[np.int64]
    """First token of each row."""
    counts_R: NDArray[np.int64]
    """How many predictions to choose in each row, at most its number of candidates."""
    keys_R: NDArray[np.uint64]
    """Random key of each row."""


def select_tokens(block: Candidates) -> NDArray[np.bool_]:
    """Choose single tokens, every subset of the wanted size equally likely (Devlin et al. 2019, section 3.1).

    Returns:
        Boolean array over the block's tokens, exactly ``counts_R`` of them true in each row.
    """
    order_T = _sort_keys(block.keys_R[block.row_T], block.row_T, block.position_T, block.is_candidate_T)
    # A row's keys stay in the row's range when all are sorted, so its n-th smallest is found by its place.
    nth_R = np.minimum(block.starts_R + np.maximum(block.counts_R, 1) - 1, len(order_T) - 1)
    limit_R = np.where(block.counts_R > 0, np.sort(order_T)[nth_R], np.uint64(0)) if len(order_T) else block.keys_R
    is_first_T = np.less_equal(order_T, limit_R[block.row_T])
    return np.asarray(block.is_candidate_T & is_first_T & (block.counts_R > 0)[block.row_T], dtype=bool)


def _sort_keys(
    keys_T: NDArray[np.uint64],
    row_T: NDArray[np.int64],
    position_T: NDArray[np.int64],
    is_candidate_T: NDArray[np.bool_],
) -> NDArray[np.uint64]:
    """Pack (row, random order, position) into one integer each; what is no candidate comes last in its row."""
    random_T = stream(keys_T, position_T) >> (_ROW_BITS + _POSITION_BITS + np.uint64(1))
    random_T |= (~is_candidate_T).astype(np.uint64) << np.uint64(35)
    row_bits_T = row_T.astype(np.uint64) << (np.uint64(64) - _ROW_BITS)
    return row_bits_T | (random_T << _POSITION_BITS) | position_T.astype(np.uint64)


STRATEGIES: dict[str, Callable[[Candidates], NDArray[np.bool_]]] = {"token": select_tokens}
"""Selection by name. Whole words and spans enter here."""
