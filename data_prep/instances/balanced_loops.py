"""The loops of `data_prep.instances.balanced` after the walk over its bucket: the exchange of Bs, and the cuts.

In plain words: a document is a row of sentences. An instance wants a number of tokens (its target) and takes them from
where the one before it ended, up to the start of a word. A sentence boundary inside, drawn at random, parts them into A
and B, each with a whole sentence if that can be; if a sentence is so long that there is no boundary, a word is drawn.
google-research/bert's `create_pretraining_data.py` takes whole sentences and then cuts the pair, which loses a tenth of
the text and more; and it puts the true B of a random pair back, so that the text of every random B is in the pass
twice. Here random pairs exchange their Bs, so all text is used once.

A sentence order pair takes whole sentences that fit, two at least: a side that is cut would show which came first.

An example: two documents of six sentences each, p1 to p6 with 4 3 6 5 2 4 tokens and q1 to q6 with 5 4 4 6 3 2, and a
target of 12 tokens for every pair (`tests/unit/data_prep/instances/test_pairing_example.py` runs it)::

    A           true B    label    B        tokens of A and B
    p1          p2 p3     0        p2 p3    4 + 8: p3 has a token more, which begins the next pair
    p3 p4 p5    p6        1        q2       8 + 4: q2 q3 loses its last three tokens
    q1          q2 q3     1        p6       5 + 4
    q3 q4       q5 q6     0        q5 q6    7 + 5

1. The walk (`pair_walk_loops.walk_bucket`): the first 12 tokens are p1, p2 and five of p3. Of the two boundaries
   inside, that after p1 leaves each side a whole sentence. The next pair starts with the rest of p3 and ends with its
   document; there the draw takes the boundary after p5, and not that after p4.
2. The labels (`balanced`): pairs are sorted by the length that they will have, all 12 here, and of each two neighbors
   one has label 1, by a coin.
3. The exchange (`part_alike`, `exchange_alike`): the two pairs with label 1 are of different texts, and take each
   other's B. Nothing is put back: every token is used once.
4. The fit (`move_ends`): a B that is longer than the one it replaces may be too much, and ends earlier. A shorter one
   ends later if its document goes on.
"""

import numpy as np

from data_prep.instances.draws import CANDIDATE, TRUNCATE
from data_prep.instances.pair_walk_loops import LONGEST_WORD, excess_by_side, word_start
from megabert.foundation.compiled import compiled, inlined
from megabert.foundation.randomness.keyed_loops import below, mix_2, mix_3

_1 = np.uint64(1)


@compiled
def part_alike(values, texts, num_texts):
    """Part items into groups of neighbours in which no text has more than half of the items.

    A group is as small as can be: all items with one value and, if one text has too many of them, all items with the
    next value too. Items that are left at the end join the last groups.

    Args:
        values: Ascending.
        texts: Number of each item's text. None has more than half of all items.
        num_texts: How many texts there are.

    Returns:
        Where each group ends.
    """
    ends, num_groups = np.empty(len(values), np.int64), 0
    counts = np.zeros(num_texts, np.int64)
    first = most = 0
    for item in range(len(values)):
        counts[texts[item]] += 1
        most = max(most, counts[texts[item]])
        is_last_alike = item + 1 == len(values) or values[item + 1] != values[item]
        if is_last_alike and 2 * most <= item + 1 - first:
            ends[num_groups] = item + 1
            num_groups += 1
            for earlier in range(first, item + 1):
                counts[texts[earlier]] = 0
            first, most = item + 1, 0
    # The remaining items have too many of one text: earlier groups join them until they do not.
    while first < len(values) and 2 * most > len(values) - first:
        num_groups -= 1
        before = ends[num_groups - 1] if num_groups else 0
        for item in range(before, first):
            counts[texts[item]] += 1
            most = max(most, counts[texts[item]])
        first = before
    if first < len(values):
        ends[num_groups] = len(values)
        num_groups += 1
    return ends[:num_groups]


@compiled
def exchange_alike(ends, texts, keys):
    """Return from whom each item takes: within its group, never from its own text, and from every item one takes.

    Items of a group stand in a row, with the items of a text next to each other. Each takes from the item half a group
    further on (the row is a circle), which is of another text, since no text has more than half of the group. If the
    largest text leaves room, the items of a stretch swap these at random.

    Args:
        ends: Where each group ends.
        texts: Text of each item.
        keys: Key of each item's draw.
    """
    takes, first = np.empty(len(texts), np.int64), 0
    for end in ends:
        size = end - first
        half, largest, same = size // 2, 0, 0
        for item in range(first, end):
            same = same + 1 if item > first and texts[item] == texts[item - 1] else 1
            largest = max(largest, same)
            takes[item] = first + (item - first + half) % size
        # Moved by less than a stretch, the distance to any own item stays above the size of the largest text.
        stretch = half - largest + 1
        for item in range(first, end):
            begin = item - (item - first) % stretch
            other = begin + below(mix_2(keys[item], CANDIDATE), item - begin + 1)
            takes[item], takes[other] = takes[other], takes[item]
        first = end
    return takes


@compiled
def move_ends(pairs, rows, lengths, last_tokens, words):
    """Let some Bs end at another word, so that pairs which took a longer or a shorter B are as long as planned.

    Args:
        pairs: `data_prep.instances.pairs.Pairs`, changed.
        rows: Numbers of the pairs.
        lengths: Tokens wanted of each B.
        last_tokens: End of the document of each B.
        words: `Words` of the bucket that the Bs are from.
    """
    _, _, b_start, b_end, _, _ = pairs
    for row in range(len(rows)):
        pair = rows[row]
        end = min(b_start[pair] + lengths[row], last_tokens[row])
        if end < last_tokens[row]:
            found = word_start(end, max(b_start[pair] + 1, end - LONGEST_WORD), end, words)
            end = end if found < 0 else found
        b_end[pair] = end


@compiled
def truncate_pairs(pairs, longest, words):
    """Cut sentence order pairs whose two sentences are too long together; no cut may show which side came first.

    Args:
        pairs: `data_prep.instances.pairs.Pairs`, changed.
        longest: Tokens of A and B together, at most.
        words: `Words` of the bucket that the pairs are from.
    """
    a_start, a_end, b_start, b_end, labels, keys = pairs
    for pair in range(len(keys)):
        sides = a_start[pair], a_end[pair], b_start[pair], b_end[pair]
        sides = _truncate_evenly(sides, labels[pair] == 1, longest, keys[pair], words)
        a_start[pair], a_end[pair], b_start[pair], b_end[pair] = sides


@inlined
def _truncate_evenly(sides, is_b_first, longest, key, words):
    """Cut the sides of a sentence order pair so that no cut shows the order; return A's start and end, and B's.

    Each side loses its front or its back, by its own coin: were the outer ends cut, a first side that starts with a
    whole sentence would mean "swapped". Which side is the longer, the second on a tie, is asked in the order that they
    are written in.
    """
    a, a_end, b, b_end = sides
    if is_b_first:
        from_b, from_a = excess_by_side(b_end - b, a_end - a, longest)
    else:
        from_a, from_b = excess_by_side(a_end - a, b_end - b, longest)
    a, a_end = _cut(a, a_end, from_a, mix_3(key, TRUNCATE, 0), words)
    b, b_end = _cut(b, b_end, from_b, mix_3(key, TRUNCATE, 1), words)
    return a, a_end, b, b_end


@inlined
def _cut(start, end, count, coin, words):
    """Take tokens from a side's back or, if the coin says so and a word starts after them, from its front to there."""
    if count == 0 or coin & _1:
        return start, end - count
    # The front goes up to the next start of a word; if there is none, the back goes instead.
    onward = word_start(start + count, start + count, end - 1, words)
    return (start, end - count) if onward < 0 else (onward, end)
