"""Choosing and masking positions, row by row; `megabert.tokens.masking.masking` has the definitions.

In plain words: of each instance a number of positions is chosen to be predicted, at random and never [CLS] or [SEP]:
single tokens, whole words, or spans of words. Of the chosen ones 80% become [MASK], 10% a random piece, and 10% are
kept as they are (Devlin et al. 2019, section 3.1). Every draw hashes the key of its instance, so a row's result depends
on nothing else.

Chosen positions are first marked as bits, 64 to a word: setting a bit needs no sort, and reading the bits from the
lowest up gives the positions in ascending order, as shards store them.
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
_1, _11, _58 = np.uint64(1), np.uint64(11), np.uint64(58)

# A trick in place of the instruction that counts trailing zeros, which numba does not offer. This constant is a de
# Bruijn sequence: its 64 windows of six bits are all different. Multiplied by 2**n, that is, shifted left by n, its top
# six bits are the n-th window. So a table from windows to n tells by which power of two it was multiplied (Leiserson,
# Prokop, Randall 1998, "Using de Bruijn sequences to index a 1 in a computer word").
_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
_BIT_OF = np.zeros(64, np.int64)
for _bit in range(64):
    _BIT_OF[((0x03F79D71B4CB0A89 << _bit) & 0xFFFFFFFFFFFFFFFF) >> 58] = _bit


@compiled
def mask_rows(masked, offsets, keys_R, wanted_R, mask_unit, pieces, action_bounds):
    """Choose positions in all rows and mask them.

    One row in, one row out, if three of its eleven positions are wanted
    (`tests/unit/tokens/masking/test_masking_example.py` runs it)::

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
    # Scratch for the longest row, used by all. The first array counts up; a row that changes it restores it, or fills
    # it anew.
    longest = 0
    for row in range(len(keys_R)):
        longest = max(longest, offsets[row + 1] - offsets[row])
    scratch = np.arange(longest + 1), np.empty(longest + 1, np.int64), np.empty(longest + 1, np.int64)
    chosen = np.empty((longest >> 6) + 1, np.uint64)  # a bit for each position
    count = 0
    for row in range(len(keys_R)):
        ids = ids_T[offsets[row] : offsets[row + 1]]
        key, specials = keys_R[row], (cls_id, sep_id)
        chosen[: (len(ids) >> 6) + 1] = 0
        if mask_unit == TOKEN and not len(weights):
            _choose_tokens(key, wanted_R[row], ids, specials, scratch, chosen)
        else:
            _choose_words(mask_unit, key, wanted_R[row], ids, specials, is_subword, weights, scratch, chosen)
        first, count = count, _list_chosen(chosen, len(ids), positions_M, count)
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
def _list_chosen(chosen, length, positions_M, count):
    """Append the positions whose bits are set to the ``count`` that are there already; return the new count."""
    for word in range((length >> 6) + 1):
        bits = chosen[word]
        while bits:
            positions_M[count] = (word << 6) + _lowest_bit(bits)
            bits &= bits - _1  # clears the lowest
            count += 1
    return count


@inlined
def _lowest_bit(bits):
    """Return the number of the lowest bit that is set.

    ``bits & -bits`` keeps only that bit, which is 2**n. Times the de Bruijn sequence, its top six bits (``>> 58``) are
    the window in which the table finds n. For bits 0b1100: 0b0100 is 2**2, and the answer 2.
    """
    return _BIT_OF[((bits & (~bits + _1)) * _DE_BRUIJN) >> _58]


@inlined
def _find_specials(ids, specials, positions):
    """Write the positions of [CLS] and [SEP] to ``positions``; return how many there are."""
    cls_id, sep_id = ids.dtype.type(specials[0]), ids.dtype.type(specials[1])
    count = 0
    for position in range(len(ids)):
        if (ids[position] == cls_id) | (ids[position] == sep_id):
            positions[count] = position
            count += 1
    return count


@inlined
def _choose_tokens(key, wanted, ids, specials, scratch, chosen):
    """Choose single positions: one after the other is drawn from the remaining ones (Fisher-Yates).

    ``order`` is a permutation of the numbers of all tokens that are not special, and starts as 0, 1, 2, ... Draw
    ``index`` picks one of its elements from ``index`` on and puts the element at ``index`` in its place, so the next
    draw sees only the others. A whole shuffle would touch every token; this one stops after the wanted number, a
    seventh of them.
    """
    order, special_positions, taken = scratch
    num_specials = _find_specials(ids, specials, special_positions)
    num_candidates = len(ids) - num_specials
    order_key, room = mix_2(key, _ORDER), min(wanted, num_candidates)
    for index in range(room):
        other = index + below(stream(order_key, index), num_candidates - index)
        position = order[other]
        order[other], taken[index] = order[index], other
        # From the number among the candidates to the position among all: each special before it adds one.
        for special in range(num_specials):
            position += position >= special_positions[special]
        chosen[position >> 6] |= _1 << np.uint64(position & 63)
    # Only what changed is put back, so that the next row finds 0, 1, 2, ... again without being filled.
    for index in range(room):
        order[taken[index]] = taken[index]


@inlined
def _choose_words(mask_unit, key, wanted, ids, specials, is_subword, weights, scratch, chosen):
    """Choose whole words in random order while they fit, or spans of words; drawn only as far as needed.

    If pieces have weights, the next word is drawn in proportion to its weight, the mean of its pieces', among the
    remaining ones. A token is then a word of one piece.

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
        if mask_unit == TOKEN or index == 0 or not is_subword[ids[candidates[index]]]:
            words[num_words] = index
            num_words += 1
    words[num_words] = num_candidates
    for index in range(num_words):
        order[index] = index

    room = min(wanted, num_candidates)
    order_key, length_key = mix_2(key, _ORDER), mix_2(key, _SPAN_LENGTH)
    if len(weights):
        _order_by_weight(order_key, ids, weights, candidates, words[: num_words + 1], order)
    for index in range(num_words):
        if room == 0:
            return
        # The next word of a Fisher-Yates shuffle, as in `_choose_tokens`; no later draw looks at order[index] again.
        # Words with weights have their order already.
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
            if size > room or chosen[candidates[first] >> 6] >> np.uint64(candidates[first] & 63) & _1:
                break
            if word > first_word and candidates[first] != candidates[first - 1] + 1:
                break
            for candidate in range(first, first + size):
                chosen[candidates[candidate] >> 6] |= _1 << np.uint64(candidates[candidate] & 63)
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
