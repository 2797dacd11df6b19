"""Which positions of an instance are predicted: one function a strategy, over many instances at once."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megabert.errors import ConfigError
from megabert.masking.keyed_random import stream, uniform

BLOCK_ROWS = 1 << 12
"""Instances treated at once: the work arrays then stay near a core's cache."""
MAX_LENGTH = 1 << 16
"""Instances are shorter: a position takes the low 16 bits of a sort key."""

SPAN_P = 0.2
MAX_SPAN_WORDS = 10

_LAST = np.uint64(0xFFFFFFFFFFFFFFFF)
_POSITION_BITS = np.uint64(16)


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
    candidates_R: NDArray[np.int64]
    """Candidates in each row."""
    counts_R: NDArray[np.int64]
    """How many predictions to choose in each row, at most its number of candidates."""
    keys_R: NDArray[np.uint64]
    """Random key of each row."""


def select_tokens(block: Candidates) -> NDArray[np.bool_]:
    """Choose single tokens, every subset of the wanted size equally likely (Devlin et al. 2019, section 3.1).

    Returns:
        Boolean array over the block's tokens, exactly ``counts_R`` of them true in each row.
    """
    # Position in the low bits: no two tokens of a row tie, so exactly the wanted number is below the limit.
    order_T = (stream(block.keys_R[block.row_T], block.position_T) >> _POSITION_BITS) << _POSITION_BITS
    order_T |= block.position_T.astype(np.uint64)
    order_T[~block.is_candidate_T] = _LAST
    limit_R = _nth_smallest(order_T, block)
    return np.less_equal(order_T, limit_R[block.row_T]) & (block.counts_R > 0)[block.row_T]


def _nth_smallest(order_T: NDArray[np.uint64], block: Candidates) -> NDArray[np.uint64]:
    """Find the ``counts_R``-th smallest key of each row.

    Sorting all keys would take most of the time of masking. So first only those are sorted that lie below
    a bound which leaves three standard deviations too many; rows where it left too few are sorted whole.
    """
    wanted_R = block.counts_R
    share_R = (wanted_R + 3 * np.sqrt(wanted_R) + 3) / np.maximum(block.candidates_R, 1)
    bound_R = np.where(share_R < 1, np.minimum(share_R, 0.999) * 2.0**64, 0).astype(np.uint64)
    bound_R[share_R >= 1] = _LAST
    limit_R = np.zeros(len(wanted_R), dtype=np.uint64)
    pending_R = wanted_R > 0
    for bounds_R in (bound_R, np.full_like(bound_R, _LAST)):
        near_T = np.flatnonzero(pending_R[block.row_T] & (order_T <= bounds_R[block.row_T]))
        row_near = block.row_T[near_T]
        kept_R = np.bincount(row_near, minlength=len(wanted_R))
        starts_R = np.cumsum(kept_R) - kept_R
        table = np.full((len(wanted_R), max(int(kept_R.max(initial=0)), 1)), _LAST)
        table[row_near, np.arange(len(near_T)) - starts_R[row_near]] = order_T[near_T]
        found_R = pending_R & (kept_R >= wanted_R)
        limit_R[found_R] = np.sort(table[found_R], axis=1)[np.arange(found_R.sum()), wanted_R[found_R] - 1]
        pending_R &= ~found_R
        if not pending_R.any():
            break
    return limit_R


def select_whole_words(block: Candidates) -> NDArray[np.bool_]:
    """Choose words with all their pieces, as google-research/bert's whole word masking does.

    Words are taken in random order; one that would exceed the wanted number is passed over, so a row may end
    with fewer. As in the original a ``##`` piece belongs to the candidate before it, also across the middle
    [SEP], and to nothing where there is none.

    Returns:
        Boolean array over the block's tokens, at most ``counts_R`` of them true in each row.
    """
    if block.is_subword_T is None:
        raise ConfigError("masking.strategy=whole_word needs to know which pieces continue a word; give is_subword.")
    words = _Words.of(block)
    taken_W = np.zeros(len(words.starts), dtype=bool)
    order_W = words.order(block)
    taken_W[order_W] = _take_in_order(words.sizes[order_W], words.in_row, block.counts_R)
    return words.spread(taken_W, block)


@dataclass(frozen=True)
class _Words:
    """The words of a block; W of them."""

    tokens: NDArray[np.int64]
    """Candidates."""
    word: NDArray[np.int64]
    """Word of each candidate."""
    starts: NDArray[np.int64]
    """First token of each word."""
    sizes: NDArray[np.int64]
    in_row: NDArray[np.int64]
    """Words of each row."""

    @classmethod
    def of(cls, block: Candidates) -> "_Words":
        assert block.is_subword_T is not None
        tokens = np.flatnonzero(block.is_candidate_T)
        row = block.row_T[tokens]
        is_first = np.concatenate([[True], np.diff(row) > 0])[: len(row)]
        is_start = is_first | ~block.is_subword_T[tokens]
        word = np.cumsum(is_start) - 1
        starts = tokens[is_start]
        in_row = np.bincount(block.row_T[starts], minlength=len(block.keys_R))
        return cls(tokens, word, starts, np.bincount(word, minlength=len(starts)), in_row)

    def order(self, block: Candidates) -> NDArray[np.int64]:
        """Return the words in random order within each row."""
        row_W = block.row_T[self.starts]
        return np.lexsort((stream(block.keys_R[row_W], block.position_T[self.starts]), row_W))

    def spread(self, taken_W: NDArray[np.bool_], block: Candidates) -> NDArray[np.bool_]:
        """Return the tokens of words."""
        chosen_T = np.zeros(len(block.row_T), dtype=bool)
        chosen_T[self.tokens] = taken_W[self.word]
        return chosen_T


def select_spans(block: Candidates) -> NDArray[np.bool_]:
    """Choose runs of whole words (SpanBERT, Joshi et al. 2020, section 3.1).

    Starts are taken in random order; a run has 1 to 10 words, geometrically distributed with p = 0.2, and ends
    early at a chosen word, a [SEP], or where the wanted number would be exceeded.

    Returns:
        Boolean array over the block's tokens, at most ``counts_R`` of them true in each row.
    """
    if block.is_subword_T is None:
        raise ConfigError("masking.strategy=span needs to know which pieces continue a word; give is_subword.")
    words = _Words.of(block)
    order_W = words.order(block)
    row_W = block.row_T[words.starts]
    draw_W = uniform(stream(stream(block.keys_R[row_W], block.position_T[words.starts]), 1))
    length_W = np.minimum(1 + np.floor(np.log1p(-draw_W) / np.log1p(-SPAN_P)).astype(np.int64), MAX_SPAN_WORDS)
    # Whether a word follows the one before it directly, in the same row.
    follows_W = np.zeros(len(words.starts) + 1, dtype=bool)
    follows_W[1:-1] = (words.starts[1:] == words.starts[:-1] + words.sizes[:-1]) & (row_W[1:] == row_W[:-1])
    taken_W = np.zeros(len(words.starts) + 1, dtype=bool)
    sizes_W = np.append(words.sizes, 0)
    next_R = np.cumsum(words.in_row) - words.in_row
    last_R, room_R = next_R + words.in_row, block.counts_R.copy()
    active = np.flatnonzero((room_R > 0) & (next_R < last_R))
    while len(active):
        start = order_W[next_R[active]]
        rows, word, wanted = active, start, length_W[start]
        for offset in range(MAX_SPAN_WORDS):
            goes_on = (wanted > offset) & ~taken_W[word] & (sizes_W[word] <= room_R[rows])
            if offset:
                goes_on &= follows_W[word]
            rows, word, wanted = rows[goes_on], word[goes_on], wanted[goes_on]
            if not len(rows):
                break
            taken_W[word] = True
            room_R[rows] -= sizes_W[word]
            word = word + 1
        next_R[active] += 1
        active = active[(room_R[active] > 0) & (next_R[active] < last_R[active])]
    return words.spread(taken_W[:-1], block)


def _take_in_order(
    sizes_W: NDArray[np.int64], words_R: NDArray[np.int64], counts_R: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Fill each row from its words in the given order without exceeding its count; all rows step by step at once."""
    taken_W = np.zeros(len(sizes_W), dtype=bool)
    next_R = np.cumsum(words_R) - words_R
    last_R = next_R + words_R
    room_R = counts_R.copy()
    active = np.flatnonzero((room_R > 0) & (next_R < last_R))
    while len(active):
        word = next_R[active]
        fits = sizes_W[word] <= room_R[active]
        taken_W[word] = fits
        room_R[active] -= np.where(fits, sizes_W[word], 0)
        next_R[active] += 1
        active = active[(room_R[active] > 0) & (next_R[active] < last_R[active])]
    return taken_W


STRATEGIES: dict[str, Callable[[Candidates], NDArray[np.bool_]]] = {
    "token": select_tokens,
    "whole_word": select_whole_words,
    "span": select_spans,
}
"""Selection by name."""
