"""The loops of `data_prep.instances.balanced`: the walk over one bucket, the exchange of Bs, and the cuts.

In plain words: a document is a row of sentences. An instance starts at one of them, wants a number of tokens (its
target) and takes whole sentences until it has that many or the document ends. A sentence boundary in the middle, drawn
at random, parts them into A and B, and the next instance starts after B. google-research/bert's
`create_pretraining_data.py` walks the same way, with one difference: it puts the true B of a random pair back, so that
the text of every random B is in the pass twice. Here random pairs exchange their Bs, so all text is used once.

At last each pair is cut to its target.

An example: two documents of six sentences each, p1 to p6 with 4 3 6 5 2 4 tokens and q1 to q6 with 5 4 4 6 3 2, and a
target of 12 tokens for every pair (`tests/unit/data_prep/instances/test_pairing_example.py` runs it)::

    A        true B    label    B        tokens of A and B
    p1       p2 p3     0        p2 p3    4 + 8: p3 loses its last token
    p4       p5 p6     1        q3       5 + 4
    q1 q2    q3        1        p5 p6    6 + 6: q1 loses its first 3 tokens
    q4 q5    q6        0        q6       9 + 2

1. The walk (`walk_bucket`): p1 to p3 are the first sentences with 12 tokens or more. Of the two boundaries inside, the
   draw takes the one after p1. The next pair starts at p4 and ends with its document, one token short of the target.
2. The labels (`balanced`): pairs are sorted by the length that they will have, 11 11 12 12, and of each two neighbors
   one has label 1, by a coin.
3. The exchange (`part_alike`, `exchange_alike`): the two pairs with label 1 are of different texts, and take each
   other's B. Nothing is put back: every sentence is used once.
4. The cut (`truncate_pairs`): a pair that is too long loses tokens from its longer side, A at the front, B at the back.
"""

# S sentences of the bucket, numbered from 0

from typing import Any, NamedTuple

import numpy as np

from data_prep.instances.draws import CANDIDATE, DIRECTION, SHORT, SPLIT_POINT, TARGET, TRUNCATE
from megabert.foundation.compiled import compiled, inlined, usable_in_loops
from megabert.foundation.randomness.keyed_loops import below, mix_2, mix_3, uniform

_1 = np.uint64(1)


class WalkOptions(NamedTuple):
    """Parameters of the walk: its draws, and how long instances are."""

    pass_key: Any
    """Key of all draws of one pass for one length."""
    short_seq_prob: float
    """Share of the instances whose target is a short one."""
    longest: int
    """Tokens of A and B together, at most."""
    has_random: bool
    """Whether label 1 means a random B (next sentence prediction) or swapped sides (sentence order)."""
    min_tokens: int
    """Documents with fewer tokens are left out."""


@compiled
def walk_bucket(starts_S, document_starts, document_keys, options, pairs):
    """Plan the pairs of a bucket, each with the B that follows its A.

    Args:
        starts_S: First token of each sentence, and the end of the last.
        document_starts: First sentence of each document, and the end of the last.
        document_keys: Random key of each document.
        options: `WalkOptions`.
        pairs: `data_prep.instances.pairs.Pairs` with room for a pair at every sentence; all but the labels is written.

    Returns:
        How many pairs were written.
    """
    pass_key, short_seq_prob, longest, has_random, min_tokens = options
    a_start, a_end, b_start, b_end, _, keys, targets = pairs
    count = 0
    for document in range(len(document_keys)):
        bounds = starts_S[document_starts[document] : document_starts[document + 1] + 1]
        if bounds[-1] - bounds[0] < min_tokens:
            continue
        # Sentence order: the sentence that reaches the target tends to be a long one. Were it always the last, the
        # longer side would tell the order, so half of the documents are walked from their end, as if seen in a mirror.
        is_backwards = not has_random and mix_2(mix_3(pass_key, document_keys[document], 0), DIRECTION) & _1 == _1
        mirror = bounds[0] + bounds[-1]
        if is_backwards:
            bounds = mirror - bounds[::-1]
        sentence, end = 0, len(bounds) - 1
        while end > 1 and sentence < end:  # a document of one sentence has no pair
            key = mix_3(pass_key, document_keys[document], sentence)
            target, middle, stop = _draw_pair(key, bounds, sentence, end, longest, short_seq_prob)
            a, a_stop, b, b_stop = bounds[sentence], bounds[middle], bounds[middle], bounds[stop]
            if is_backwards:  # back from the mirror: what came second there is first in the text
                a, a_stop, b, b_stop = mirror - b_stop, mirror - b, mirror - a_stop, mirror - a
            a_start[count], a_end[count], b_start[count], b_end[count] = a, a_stop, b, b_stop
            keys[count], targets[count] = key, target
            count += 1
            sentence = _next_start(sentence, stop, end)
    return count


@inlined
def _draw_pair(key, bounds, sentence, end, longest, short_seq_prob):
    """Return the target of the instance that starts at a sentence, the sentence B starts at, and the one after B."""
    # Usually the whole length is wanted. Sometimes (short_seq_prob, 10%) it is less, so that the model meets short
    # inputs before it is fine-tuned on them.
    target = longest
    if uniform(mix_2(key, SHORT)) < short_seq_prob:
        target = 2 + below(mix_2(key, TARGET), longest - 1)
    # Take sentences, two at least, until the target is reached or the document ends.
    stop = min(sentence + 2, end)
    while stop < end and bounds[stop] < bounds[sentence] + target:
        stop += 1
    # A gets a random number of them, one at least, and leaves one at least to B.
    return target, sentence + 1 + below(mix_2(key, SPLIT_POINT), stop - sentence - 1), stop


@inlined
def _next_start(sentence, following, end):
    """Return the sentence that the next instance starts at: ``following``, if it is not the last of the document.

    A last sentence alone is no pair. It takes the one before it along where the walk still moves forward by that;
    otherwise it is left out.
    """
    if end - following != 1:
        return following
    return following - 1 if following - 1 > sentence else end


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
def truncate_pairs(pairs, longest, has_random, text):
    """Cut pairs to the tokens wanted. Nothing is left of B if A's last word fills the instance.

    google-research/bert cuts tokens off the front or the back of a side by a coin for each. Here A loses its front and
    B its back, so that a true pair stays adjacent, and A then starts at the start of a word. A sentence order pair is
    cut in another way, since there the cuts must not tell which side came first.

    Args:
        pairs: `data_prep.instances.pairs.Pairs`, changed.
        longest: Tokens of A and B together, at most.
        has_random: Whether label 1 means a random B or swapped sides.
        text: Ids of all tokens of the bucket that A is from, the number of the first of them over the split, and
            whether a piece continues a word, for each id.
    """
    a_start, a_end, b_start, b_end, labels, keys, targets = pairs
    tokens, first_token, is_subword = text
    for pair in range(len(targets)):
        a, a_stop, b, b_stop = a_start[pair], a_end[pair], b_start[pair], b_end[pair]
        if has_random:
            a, b_stop = _truncate(a, a_stop, b, b_stop, targets[pair], longest, tokens, first_token, is_subword)
        else:
            is_b_first = labels[pair] == 1
            a, a_stop, b, b_stop = _truncate_evenly(
                (a, a_stop, b, b_stop), is_b_first, targets[pair], keys[pair], tokens, first_token, is_subword
            )
        a_start[pair], a_end[pair], b_start[pair], b_end[pair] = a, a_stop, b, b_stop


@inlined
def _truncate(a, a_end, b, b_end, target, longest, tokens, first_token, is_subword):
    """Cut A at its front, to the start of a word, and B at its back; return A's start and B's end."""
    from_a, from_b = excess_by_side(a_end - a, b_end - b, target)
    first = a
    if from_a:
        a += from_a
        # Inside a word: continue to the next one, ...
        onward = a
        while onward < a_end and is_subword[tokens[onward - first_token]]:
            onward += 1
        if onward < a_end:
            a = onward
        else:
            # ... or back to the start of this one, if it is A's last. In byte-level BPE a document's first word has no
            # space before it, so no piece tells where it begins.
            while a > first and is_subword[tokens[a - first_token]]:
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


@usable_in_loops
def excess_by_side(a, b, limit):
    """Return how many tokens to take from A and from B so that both fit.

    google-research/bert (``truncate_seq_pair``) takes one token at a time, from the longer side, B on a tie. The number
    from each side has a closed form, which array arithmetic uses as well.

    Args:
        a: Tokens of A: a number, or an array of int64.
        b: Tokens of B, likewise.
        limit: Most tokens of both together.
    """
    excess = np.maximum(a + b - limit, 0)
    # First the longer side alone, until both are as long, or enough is taken.
    from_a = np.minimum(excess, np.maximum(a - b, 0))
    from_b = np.minimum(excess, np.maximum(b - a, 0))
    # Then in turn, B first.
    rest = excess - from_a - from_b
    return from_a + rest // 2, from_b + (rest + 1) // 2
