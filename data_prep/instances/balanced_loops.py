"""The loops of `data_prep.instances.balanced` over one bucket: the walk, the labels that it deals, and the cuts.

In plain words: a document is a row of sentences. An instance starts at one of them, wants a number of tokens (its
target) and takes whole sentences until it has that many or the document ends. A sentence boundary in the middle, drawn
at random, parts them into A and B. Then a label is dealt. With 0 ("B follows A") the instance is complete, and the next
one starts after it. With 1 ("B is random") B will be replaced later; the sentences of the true B are
put back, so the next instance starts where A ends. google-research/bert's `create_pretraining_data.py` walks the same
way. At last each pair is cut to its target.
"""

# S sentences of the bucket, numbered from 0

from typing import Any, NamedTuple

import numpy as np

from data_prep.instances.draws import DIRECTION, SHORT, SPLIT_POINT, TARGET, TRUNCATE
from megabert.compiled import compiled, inlined, usable_in_loops
from megabert.randomness.keyed_loops import below, mix_2, mix_3, uniform

LENGTH_RANGES = 8  # labels are even within each: a finer division leaves more labels without their opposite
LABEL_DELAY = 8  # instances; chains of put-backs at a document's end are rarely as long
_MOST_OWED = 2 * LABEL_DELAY  # to one range: each deal pays back a label that is due, or adds one
_1 = np.uint64(1)


class WalkOptions(NamedTuple):
    """What the walk draws from, and how long instances are."""

    pass_key: Any
    """Key of all draws of one pass for one length, but for the labels."""
    label_key: Any
    """Key of the labels of this bucket in this pass."""
    short_seq_prob: float
    """Share of the instances whose target is a short one."""
    longest: int
    """Tokens of A and B together, at most."""
    has_random: bool
    """Whether label 1 means a random B (next sentence prediction) or swapped sides (sentence order)."""
    min_tokens: int
    """Documents with fewer tokens are left out."""


WHOLE, REACHING, CUT = range(3)  # how a true B ends: with its document, where the target is reached, or cut there


class PairColumns(NamedTuple):
    """The pairs, one element each, as ranges of tokens over the split."""

    a_start: Any
    """First token of A."""
    a_end: Any
    b_start: Any
    """First token of B: of the one that follows A, until a random one takes its place."""
    b_end: Any
    label: Any
    """1: random, or swapped."""
    key: Any
    """Key of all further draws of the instance."""
    target: Any
    """Tokens wanted of A and B together."""
    document: Any
    """Document of the bucket that A is from."""
    b_length: Any
    """Tokens of the B that follows A, once it is cut to the target."""
    kind: Any
    """How that B ends: `WHOLE`, `REACHING` or `CUT`."""


class OwedLabels(NamedTuple):
    """The labels that are still to be dealt as the opposite of earlier ones: a queue for each range of lengths."""

    due: Any
    """Number of the deal from which on each owed label may be dealt."""
    label: Any
    first: Any
    """Where the oldest of each queue is; queues are rings of ``_MOST_OWED`` elements."""
    count: Any
    """Labels in each queue."""
    totals: Any
    """Labels dealt, and coins thrown."""


@compiled
def walk_bucket(starts_S, document_starts, document_keys, options, pairs):
    """Plan the pairs of a bucket, each with the B that follows its A.

    Args:
        starts_S: First token of each sentence, and the end of the last.
        document_starts: First sentence of each document, and the end of the last.
        document_keys: Random key of each document.
        options: `WalkOptions`.
        pairs: `PairColumns` with room for a pair at every sentence; written.

    Returns:
        How many pairs were written.
    """
    pass_key, label_key, short_seq_prob, longest, has_random, min_tokens = options
    a_start, a_end, b_start, b_end, labels, keys, targets, documents, b_length, kinds = pairs
    owed = new_owed()
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
            # Labels are even within each range of lengths. A random B will be as long as the true one.
            planned = min(bounds[stop] - bounds[sentence], target)
            label = deal(label_key, owed, min((planned - 1) * LENGTH_RANGES // longest, LENGTH_RANGES - 1))

            a, a_stop, b, b_stop = bounds[sentence], bounds[middle], bounds[middle], bounds[stop]
            if is_backwards:  # back from the mirror: what came second there is first in the text
                a, a_stop, b, b_stop = mirror - b_stop, mirror - b, mirror - a_stop, mirror - a
            a_start[count], a_end[count], b_start[count], b_end[count] = a, a_stop, b, b_stop
            labels[count], keys[count], targets[count], documents[count] = label, key, target, document
            excess = excess_by_side(a_stop - a, b_stop - b, target)[1]
            b_length[count] = b_stop - b - excess
            kinds[count] = CUT if excess else REACHING if b_stop - a >= target else WHOLE
            count += 1

            # The true B of a random pair was not used: it is put back, so that no text is lost.
            sentence = _next_start(sentence, middle if label == 1 and has_random else stop, end)
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


@inlined
def new_owed():
    """Return `OwedLabels` with nothing owed."""
    shape, nothing = (LENGTH_RANGES, _MOST_OWED), np.zeros(LENGTH_RANGES, np.int64)
    return OwedLabels(
        np.zeros(shape, np.int64), np.zeros(shape, np.int64), nothing, nothing.copy(), np.zeros(2, np.int64)
    )


@inlined
def deal(key, owed, length_range):
    """Return the label of the next instance: a coin, or the opposite of one dealt before in the same range of lengths.

    Half of the labels are to be 1 at every length, or the length would tell something of the label. So each coin is
    paid back: its opposite is owed to its range of lengths, and a later instance of that range gets it without a throw.

    It is paid back after `LABEL_DELAY` deals at the earliest. A random label puts B back, so the next instance of the
    document is often a little shorter: were that one always dealt the opposite, length would tell the label after all
    (by 1.7 tokens at length 512 on short documents).

    Args:
        key: Key of the coins.
        owed: `OwedLabels`, changed.
        length_range: Which of the `LENGTH_RANGES` the instance is in.
    """
    due, labels, first, count, totals = owed
    totals[0] += 1
    # The oldest owed label of the range, if there is one and its time has come.
    oldest = first[length_range] % _MOST_OWED
    if count[length_range] and due[length_range, oldest] <= totals[0]:
        first[length_range] += 1
        count[length_range] -= 1
        return labels[length_range, oldest]
    # Otherwise a coin, whose opposite joins the queue.
    label = np.int64(mix_2(key, totals[1]) & _1)
    totals[1] += 1
    last = (first[length_range] + count[length_range]) % _MOST_OWED
    due[length_range, last], labels[length_range, last] = totals[0] + LABEL_DELAY, 1 - label
    count[length_range] += 1
    return label


@compiled
def truncate_pairs(pairs, longest, has_random, text):
    """Cut pairs to the tokens wanted. Nothing is left of B where A's last word fills the instance.

    google-research/bert cuts tokens off the front or the back of a side by a coin for each. Here A loses its front and
    B its back, so that a true pair stays adjacent, and A then starts at the start of a word. A sentence order pair is
    cut in another way, since there the cuts must not tell which side came first.

    Args:
        pairs: `PairColumns`, changed.
        longest: Tokens of A and B together, at most.
        has_random: Whether label 1 means a random B or swapped sides.
        text: Ids of all tokens of the bucket that A is from, the number of the first of them over the split, and
            whether a piece continues a word, for each id.
    """
    a_start, a_end, b_start, b_end, labels, keys, targets, _, _, _ = pairs
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
