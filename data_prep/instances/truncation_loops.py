"""The last loop of `data_prep.instances.balanced`: pairs are cut to the tokens that they want.

google-research/bert cuts tokens off the front or the back of a side by a coin for each. Here A loses its front and B
its back, so that a true pair stays adjacent, and A then starts at the start of a word. A sentence order pair is cut in
another way, since there the cuts must not tell which side came first.
"""

from typing import Any, NamedTuple

import numpy as np

from data_prep.instances.draws import TRUNCATE
from data_prep.instances.truncation import excess_by_side
from megabert.compiled import compiled, inlined, usable_in_loops
from megabert.randomness.keyed_loops import mix_3

usable_in_loops(excess_by_side)
_1 = np.uint64(1)


class BucketText(NamedTuple):
    """The text that A is from; pieces that continue a word are looked up in it."""

    tokens: Any
    """Ids of all tokens of the bucket."""
    first_token: int
    """Number of the first of them over the split."""
    is_subword: Any
    """Whether a piece continues a word, for each id."""


class PairRanges(NamedTuple):
    """The pairs that are left, one element each, as ranges of tokens over the split; written."""

    a_start: Any
    a_length: Any
    b_start: Any
    b_length: Any
    planned: Any
    """Which of the planned pairs it is."""


@compiled
def truncate_pairs(pairs, options, text, ranges):
    """Cut pairs to the tokens wanted, and leave out those without a B.

    Args:
        pairs: `balanced_loops.PairColumns`.
        options: `balanced_loops.WalkOptions`.
        text: `BucketText`.
        ranges: `PairRanges`, written.

    Returns:
        How many pairs are left.
    """
    a_starts, a_ends, b_starts, b_ends, targets, _, _, labels, keys = pairs
    longest, has_random = options.longest, options.has_random
    tokens, first_token, is_subword = text
    a_start, a_length, b_start, b_length, planned = ranges
    count = 0
    for pair in range(len(targets)):
        a, a_end, b, b_end = a_starts[pair], a_ends[pair], b_starts[pair], b_ends[pair]
        if has_random:
            a, b_end = _truncate(a, a_end, b, b_end, targets[pair], longest, tokens, first_token, is_subword)
        else:
            is_b_first = labels[pair] == 1
            a, a_end, b, b_end = _truncate_evenly(
                (a, a_end, b, b_end), is_b_first, targets[pair], keys[pair], tokens, first_token, is_subword
            )
        # Nothing is left of B where A's last word fills the instance.
        if b_end > b:
            a_start[count], a_length[count], b_start[count], b_length[count] = a, a_end - a, b, b_end - b
            planned[count] = pair
            count += 1
    return count


@inlined
def _truncate(a, a_end, b, b_end, target, longest, tokens, first_token, is_subword):
    """Cut A at its front, to the start of a word, and B at its back; return A's start and B's end."""
    from_a, from_b = excess_by_side(a_end - a, b_end - b, target)
    if from_a:
        a += from_a
        # Inside a word: continue to the next one, ...
        onward = a
        while onward < a_end and is_subword[tokens[onward - first_token]]:
            onward += 1
        if onward < a_end:
            a = onward
        else:  # ... or back to the start of this one, if it is A's last.
            while is_subword[tokens[a - first_token]]:
                a -= 1
    # Going back made A longer. If that word is so long that it fills the instance, B is cut further, or to nothing.
    return a, b + min(b_end - b - from_b, longest - (a_end - a))


@inlined
def _truncate_evenly(sides, is_b_first, target, key, tokens, first_token, is_subword):
    """Cut the sides of a sentence order pair so that no cut shows the order; return A's start and end, and B's.

    Each side loses its front or its back, by its own coin: were the outer ends cut, as for next sentence prediction, a
    first side that starts with a whole sentence would mean "swapped". Which side is the longer, the second on a tie, is
    asked in the order that they are written in.
    """
    a, a_end, b, b_end = sides
    if is_b_first:
        from_b, from_a = excess_by_side(b_end - b, a_end - a, target)
    else:
        from_a, from_b = excess_by_side(a_end - a, b_end - b, target)
    a, a_end = _cut(a, a_end, from_a, mix_3(key, TRUNCATE, 0), tokens, first_token, is_subword)
    b, b_end = _cut(b, b_end, from_b, mix_3(key, TRUNCATE, 1), tokens, first_token, is_subword)
    return a, a_end, b, b_end


@inlined
def _cut(start, end, count, coin, tokens, first_token, is_subword):
    """Take tokens from a side's back or, if the coin says so and a word starts after them, from its front to there."""
    if count == 0 or coin & _1:
        return start, end - count
    # The front goes up to the next start of a word; if there is none, the back goes instead.
    onward = start + count
    while onward < end and is_subword[tokens[onward - first_token]]:
        onward += 1
    return (onward, end) if onward < end else (start, end - count)
