"""Choosing and masking positions, row by row; `megabert.tokens.masking` has the definitions.

In plain words: of each instance a number of positions is chosen to be predicted, at random and never [CLS] or [SEP]:
single tokens, whole words, or spans of words. Of the chosen ones 80% become [MASK], 10% a random piece, and 10% are
kept as they are (Devlin et al. 2019, section 3.1). Every draw hashes the key of its instance, so a row's result depends
on nothing else.

Chosen positions are first marked: a mark needs no sort, and reading the marks from the first position on gives the
positions in ascending order, as shards store them.
"""

# T tokens of all instances, M predictions of all instances, R rows

import numpy as np

from megabert.foundation.compiled import compiled, inlined
from megabert.foundation.randomness.keyed_loops import below, mix_2, stream, uniform

TOKEN, WHOLE_WORD, SPAN = range(3)
MAX_SPAN_WORDS = 10
# A span is of at most k words with a probability of 1 - 0.8^k (geometric with p = 0.2). SpanBERT draws none of more
# than 10 words, so the probabilities of 1 to 10 add up to one (mean 3.80).
LONGER_SPAN = tuple((1 - 0.8**words) / (1 - 0.8**MAX_SPAN_WORDS) for words in range(1, MAX_SPAN_WORDS))
# Draws under an instance's key: the order of words, what happens to a position, what replaces it, lengths of spans.
_ORDER, _ACTION, _REPLACEMENT, _SPAN_LENGTH = 1, 2, 3, 4
_11 = np.uint64(11)


@compiled
def mask_rows(masked, offsets, keys_R, wanted_R, mask_unit, pieces, action_bounds):
    """Choose positions in all rows and mask them.

    One row in, one row out, if three of its eleven positions are wanted
    (`tests/unit/tokens/test_masking_example.py` runs it)::

        ids in       [CLS] the cat sat on the mat [SEP] it slept [SEP]
        positions    1 4 9
        originals    the on slept
        ids out      [CLS] the cat sat [MASK] the mat [SEP] it on [SEP]

    Position 1 is kept as it is, 4 becomes [MASK], and 9 a random piece. Nothing else of the row is predicted.

    Args:
        masked: `masking.MaskedInstances`: the ids before masking, changed; the rest is written, and has room
            for all that is wanted.
        offsets: Where each instance starts, and the end of the last.
        keys_R: Random key of each instance.
        wanted_R: How many positions to choose, at most.
        mask_unit: `TOKEN`, `WHOLE_WORD` or `SPAN`.
        pieces: `masking.PieceTable`; ``is_subword`` is empty if single tokens are masked, ``weights`` if all
            pieces are masked alike.
        action_bounds: What happens to a chosen position, by a draw of 53 bits: below the first bound it becomes [MASK]
            (80% by default), from there to below the second a random piece (10%), and above it is kept (10%).
    """
    mask_below, random_below = action_bounds
    ids_T, positions_M, originals_M, ends = masked
    cls_id, sep_id, mask_id, vocab_size, is_subword, weights = pieces
    mask = ids_T.dtype.type(mask_id)
    longest = 0
    for row in range(len(keys_R)):
        longest = max(longest, offsets[row + 1] - offsets[row])
    order, words, candidates = np.empty((3, longest + 1), np.int64)  # scratch for the longest row, used by all
    scratch, is_chosen = (order, words, candidates), np.empty(longest, np.bool_)
    count = 0
    for row in range(len(keys_R)):
        ids = ids_T[offsets[row] : offsets[row + 1]]
        key, specials, first = keys_R[row], (cls_id, sep_id), count
        is_chosen[: len(ids)] = False
        _choose_words(mask_unit, key, wanted_R[row], ids, specials, is_subword, weights, scratch, is_chosen)
        for place in range(len(ids)):  # each is written, and the next one overwrites it unless it counts
            positions_M[count] = place
            count += is_chosen[place]
        # 80% [MASK], 10% a random piece, 10% kept. The draws are named by the position; a span is replaced as one, by
        # the draw of its first token (SpanBERT).
        action_key, replacement_key = mix_2(key, _ACTION), mix_2(key, _REPLACEMENT)
        previous, action = np.int64(-2), np.uint64(0)
        for prediction in range(first, count):
            position = np.int64(positions_M[prediction])
            if mask_unit < SPAN or position != previous + 1:
                action = stream(action_key, position) >> _11
            previous, originals_M[prediction] = position, ids[position]
            ids[position] = mask if action < mask_below else ids[position]
            if mask_below <= action < random_below:  # one in ten: only these need a second draw
                ids[position] = below(stream(replacement_key, position), vocab_size)
        ends[row + 1] = count


@inlined
def _choose_words(mask_unit, key, wanted, ids, specials, is_subword, weights, scratch, is_chosen):
    """Choose tokens, or whole words, in random order while they fit, or spans of words; drawn only as far as needed.

    A token is a word of one piece. If pieces have weights, the next word is drawn in proportion to its weight, the mean
    of its pieces', among the remaining ones.

    A word that would exceed the wanted number is passed over, and the next one tried, as in
    google-research/bert: an instance may end with fewer predictions than wanted, never with more or with part of a
    word.
    """
    order, words, candidates = scratch
    num_candidates = num_words = 0
    # Candidates: the positions of all tokens but [CLS] and [SEP]. Each is written, and the next one overwrites it
    # unless it counts, which spares the branch.
    for position in range(len(ids)):
        candidates[num_candidates] = position
        num_candidates += (ids[position] != specials[0]) & (ids[position] != specials[1])
    # Words: the candidate that each starts with. A ## piece joins the candidate before it, also across the middle
    # [SEP], as in the original.
    for index in range(num_candidates):
        words[num_words], order[num_words] = index, num_words
        num_words += mask_unit == TOKEN or index == 0 or not is_subword[ids[candidates[index]]]
    words[num_words] = num_candidates
    room = min(wanted, num_candidates)
    order_key, length_key = mix_2(key, _ORDER), mix_2(key, _SPAN_LENGTH)
    if len(weights):
        _order_by_weight(order_key, ids, weights, candidates, words[: num_words + 1], order)
    for index in range(num_words):
        if room == 0:
            return
        # The next word of a Fisher-Yates shuffle, which ends with the wanted number, about a seventh of the tokens. No
        # later draw looks at order[index] again. Words with weights have their order already.
        other = index if len(weights) else index + below(stream(order_key, index), num_words - index)
        first_word = order[other]
        order[other] = order[index]
        # A span is as many words longer than one as there are bounds at or below one uniform draw.
        span_words = 1
        if mask_unit == SPAN:
            draw = uniform(stream(length_key, index))
            for bound in LONGER_SPAN:
                span_words += draw >= bound
        # Take its words one by one. It ends early before a word that does not fit or is chosen already, and at a [SEP].
        for word in range(first_word, min(first_word + span_words, num_words)):
            first, size = words[word], words[word + 1] - words[word]
            if size > room or is_chosen[candidates[first]]:
                break
            if word > first_word and candidates[first] != candidates[first - 1] + 1:
                break
            for candidate in range(first, first + size):
                is_chosen[candidates[candidate]] = True
            room -= size


@inlined
def _order_by_weight(order_key, ids, weights, candidates, words, order):
    """Write the numbers of the words to ``order``, as draws one after the other by their weights would give them.

    That is the order of exponential draws, each divided by its weight: of two, the first is the smaller one with a
    probability of its share in both weights (Efraimidis & Spirakis 2006).
    """
    num_words = len(words) - 1
    draws = np.empty(num_words)
    for word in range(num_words):
        weight = 0.0
        for candidate in range(words[word], words[word + 1]):
            weight += weights[ids[candidates[candidate]]]
        mean = weight / (words[word + 1] - words[word])
        draws[word] = -np.log1p(-uniform(stream(order_key, word))) / mean
    order[:num_words] = np.argsort(draws)
