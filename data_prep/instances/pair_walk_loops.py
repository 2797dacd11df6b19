"""The walks over the documents of a bucket: one plans pairs, the other makes instances of one segment.

Each pair has the B that follows its A in the text. `data_prep.instances.balanced_loops` opens with an example, and
exchanges the Bs of random pairs afterwards.

Each instance of one segment begins where the one before it ended, so all text is used once in a pass, and the last one
of a document takes the rest. It ends at the last sentence that fits. A sentence that is longer than the target is cut
there and goes on in the next instance: where a text has few marks of a sentence's end, or none, as lists of ids,
nothing is lost.
"""

# D documents and S sentences of the bucket, numbered from 0

from typing import Any, NamedTuple

import numpy as np

from data_prep.instances.draws import DIRECTION, SHORT, SPLIT_POINT, TARGET
from megabert.foundation.compiled import compiled, inlined, usable_in_loops
from megabert.foundation.randomness.keyed_loops import below, mix_2, mix_3, uniform

_1 = np.uint64(1)
LONGEST_WORD = 16
"""Pieces that are looked at for the start of a word. To byte-level BPE and Unigram a text without spaces is one word,
which may be cut anywhere."""


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
    has_whole_words: bool
    """Whether no side may start inside a word, however long that is."""
    is_paired: bool
    """Whether a document is a pair, of two lists of ids."""


class Words(NamedTuple):
    """The tokens of a bucket, and how to see where words start in them."""

    tokens: Any
    """Ids of all tokens."""
    first_token: Any
    """Number of the first of them over the split."""
    is_subword: Any
    """Whether a piece continues a word, for each id."""


@compiled
def walk_bucket(starts_S, document_starts, document_keys, words, options, pairs):
    """Plan the pairs of a bucket, each with the B that follows its A.

    Args:
        starts_S: First token of each sentence, and the end of the last.
        document_starts: First sentence of each document, and the end of the last.
        document_keys: Random key of each document.
        words: `Words` of the bucket.
        options: `WalkOptions`.
        pairs: `data_prep.instances.pairs.Pairs` with room for a pair every two tokens; all but the labels is written.

    Returns:
        How many pairs were written.
    """
    pass_key, short_seq_prob, longest, has_random, min_tokens, has_whole_words, is_paired = options
    tokens, first_token, is_subword = words
    a_start, a_end, b_start, b_end, _, keys = pairs
    count = 0
    for document in range(len(document_keys)):
        bounds = starts_S[document_starts[document] : document_starts[document + 1] + 1]
        if len(bounds) == 2 or bounds[-1] - bounds[0] < min_tokens:  # a document of one sentence has no pair
            continue
        # Sentence order: the sentence that does not fit in an instance, and begins the next, tends to be a long one.
        # Were it always the first, the longer side would show the order, so half of the documents are walked from
        # their end, as if seen in a mirror.
        is_backwards = not has_random and mix_2(mix_3(pass_key, document_keys[document], 0), DIRECTION) & _1 == _1
        mirror = bounds[0] + bounds[-1]
        if is_backwards:
            bounds = mirror - bounds[::-1]
        position, sentence, last, end = bounds[0], 1, len(bounds) - 1, bounds[-1]
        while end - position > 1:
            key = mix_3(pass_key, document_keys[document], position - bounds[0])
            target = draw_target(key, longest, short_seq_prob)
            if has_random and not is_paired:
                stop = _stop_at_word(position, target, end, longest, has_whole_words, words)
            else:
                stop = _stop_at_sentence(bounds, sentence, position + target)
            # A rest within the last sentence would be a poor pair: it gets the sentence before it as well.
            if bounds[last - 1] <= stop < end:
                if last - 2 > sentence:
                    stop = bounds[last - 2]
                elif not has_random:
                    stop = end
            middle = _draw_middle(key, bounds, sentence, position, stop)
            if middle == stop and has_random:
                middle = _draw_word(key, position, stop, has_whole_words, words)
            if middle < stop:
                a, a_stop, b, b_stop = position, middle, middle, stop
                if has_random and is_paired:
                    from_a, from_b = excess_by_side(a_stop - a, b_stop - b, target)
                    a, b_stop = a + from_a, b_stop - from_b
                if is_backwards:  # back from the mirror: what came second there is first in the text
                    a, a_stop, b, b_stop = mirror - b_stop, mirror - b, mirror - a_stop, mirror - a
                a_start[count], a_end[count], b_start[count], b_end[count] = a, a_stop, b, b_stop
                keys[count] = key
                count += 1
            position = stop
            if has_random and has_whole_words:  # after a word that is longer than an instance
                while position < end and is_subword[tokens[position - first_token]]:
                    position += 1
            while sentence < last and bounds[sentence] <= position:
                sentence += 1
    return count


@inlined
def draw_target(key, longest, short_seq_prob):
    """Draw the tokens of a pair: usually all that fit, sometimes (``short_seq_prob``, 10%) fewer.

    So the model meets short inputs before it is fine-tuned on them.
    """
    if uniform(mix_2(key, SHORT)) < short_seq_prob:
        return 2 + below(mix_2(key, TARGET), longest - 1)
    return longest


@inlined
def _stop_at_word(position, target, end, longest, has_whole_words, words):
    """Return where a pair of the target length ends: at the start of a word, if there is one within reach."""
    stop = position + target
    if stop >= end:
        return end
    least = max(position + 2, stop - (longest if has_whole_words else LONGEST_WORD))
    found = word_start(stop, least, min(position + longest, end - 1), words)
    return stop if found < 0 else found


@inlined
def _stop_at_sentence(bounds, sentence, most):
    """Return where a pair of whole sentences ends, two at least: with the last that ends by ``most``."""
    following = min(sentence + 1, len(bounds) - 1)
    while following + 1 < len(bounds) and bounds[following + 1] <= most:
        following += 1
    return bounds[following]


@inlined
def _draw_middle(key, bounds, sentence, position, stop):
    """Draw where B starts, at one of the sentences that do between both ends; ``stop`` if there is none.

    ``sentence`` is the first one after the position. If it can be, each side has a whole sentence: whether a few words
    of one follow the others cannot be told.
    """
    following = sentence
    while bounds[following] < stop:
        following += 1
    if following == sentence:
        return stop
    first, last = sentence, following - 1
    if first < last and bounds[first - 1] < position:
        first += 1
    if first < last and bounds[following] > stop:
        last -= 1
    return bounds[first + below(mix_2(key, SPLIT_POINT), last + 1 - first)]


@inlined
def _draw_word(key, position, stop, has_whole_words, words):
    """Draw where B starts inside a sentence; ``stop`` if no word starts there and none may be parted."""
    if stop - position < 2:
        return stop
    place = position + 1 + below(mix_2(key, SPLIT_POINT), stop - position - 1)
    found = word_start(place, position + 1, stop - 1, words)
    if found >= 0:
        return found
    return stop if has_whole_words else place


@inlined
def word_start(place, least, most, words):
    """Return where the word at a token starts, not before ``least``; else the next one, by ``most``; else -1."""
    tokens, first_token, is_subword = words
    start = place
    while start > least and is_subword[tokens[start - first_token]]:
        start -= 1
    if is_subword[tokens[start - first_token]]:
        start = place
        while start < most and is_subword[tokens[start - first_token]]:
            start += 1
    return -1 if is_subword[tokens[start - first_token]] else start


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


@compiled
def walk_documents(document_starts, starts_S, document_keys, options):
    """Cut the documents of a bucket into instances.

    Args:
        document_starts: First sentence of each document, and the end of the last: one longer than D.
        starts_S: First token of each sentence, and the end of the last: one longer than S.
        document_keys: Random key of each document.
        options: `data_prep.instances.pair_walk_loops.WalkOptions`.

    Returns:
        Of each instance its first token, the token after it, and its key.
    """
    pass_key, short_seq_prob, longest, _, min_tokens, _, _ = options
    # An instance ends at the end of a sentence, or has as many tokens as its target, which is 2 at least.
    most = (starts_S[-1] - starts_S[0]) // 2 + len(starts_S)
    starts, stops, keys = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.uint64)
    count = 0
    for document in range(len(document_keys)):
        sentence, last = document_starts[document], document_starts[document + 1]
        first, end = starts_S[sentence], starts_S[last]
        position = first if end - first >= min_tokens else end
        while position < end:
            key = mix_3(pass_key, document_keys[document], position - first)
            stop = position + draw_target(key, longest, short_seq_prob)
            while sentence < last and starts_S[sentence + 1] <= stop:
                sentence += 1
            if starts_S[sentence] > position:
                stop = starts_S[sentence]
            starts[count], stops[count], keys[count] = position, stop, key
            position = stop
            count += 1
    return starts[:count], stops[:count], keys[:count]
