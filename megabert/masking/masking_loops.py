"""Choosing and masking positions, row by row (megabert.masking.masking says what is meant)."""

# T tokens of all instances, M predictions of all instances, R rows

import numpy as np

from megabert.compiled import compiled, inlined
from megabert.randomness.keyed_loops import below, mix_2, stream, uniform

TOKEN, WHOLE_WORD, SPAN = range(3)
_1, _11, _58 = np.uint64(1), np.uint64(11), np.uint64(58)
# Leiserson, Prokop, Randall 1998, "Using de Bruijn sequences to index a 1 in a computer word".
_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
_BIT_OF = np.zeros(64, np.int64)
for _bit in range(64):
    _BIT_OF[((0x03F79D71B4CB0A89 << _bit) & 0xFFFFFFFFFFFFFFFF) >> 58] = _bit
# Draws under an instance's key: the order of words, what happens to a position, what replaces it, lengths of spans.
_ORDER, _ACTION, _REPLACEMENT, _SPAN_LENGTH = 1, 2, 3, 4
MAX_SPAN_WORDS = 10
# A span is longer than k words with probability 0.8^k (SpanBERT: geometric with p = 0.2, at most 10 words).
LONGER_SPAN = tuple(1 - 0.8**words for words in range(1, MAX_SPAN_WORDS))


@compiled
def mask_rows(ids_T, offsets, keys, wanted_R, pieces, is_subword, bounds, positions_M, originals_M, ends):
    """Mask all rows.

    Args:
        ids_T: Ids of all instances; written where masked.
        offsets: Where each instance starts, and the end.
        keys: Of the instances.
        wanted_R: How many positions to choose at most.
        pieces: Unit, [CLS], [SEP], [MASK], size of the vocabulary.
        is_subword: By id; empty where the unit is `TOKEN`.
        bounds: Of the upper 53 bits of a draw: below the first a position becomes [MASK], below the second any piece.
        positions_M: Written, with room for all that is wanted.
        originals_M: Written, likewise.
        ends: Written: of each instance's predictions, after a 0.
    """
    unit, cls_id, sep_id, mask_id, vocab_size = pieces
    mask = ids_T.dtype.type(mask_id)
    longest = 0
    for row in range(len(keys)):
        longest = max(longest, offsets[row + 1] - offsets[row])
    work = np.arange(longest + 1), np.empty(longest + 1, np.int64), np.empty(longest + 1, np.int64)
    chosen = np.empty((longest >> 6) + 1, np.uint64)  # a bit a position
    made = 0
    for row in range(len(keys)):
        here = ids_T[offsets[row] : offsets[row + 1]]
        chosen[: (len(here) >> 6) + 1] = 0
        if unit == TOKEN:
            _choose_tokens(keys[row], wanted_R[row], here, (cls_id, sep_id), work, chosen)
        else:
            _choose_words(unit == SPAN, keys[row], wanted_R[row], here, (cls_id, sep_id), is_subword, work, chosen)
        action_key, replacement_key = mix_2(keys[row], _ACTION), mix_2(keys[row], _REPLACEMENT)
        first = made
        for word in range((len(here) >> 6) + 1):
            bits = chosen[word]
            while bits:
                positions_M[made] = (word << 6) + _lowest_bit(bits)
                bits &= bits - _1
                made += 1
        before, action = np.int64(-2), np.uint64(0)
        for prediction in range(first, made):
            position = np.int64(positions_M[prediction])
            if unit != SPAN or position != before + 1:  # a span is replaced as one
                action = stream(action_key, position) >> _11
            before, originals_M[prediction] = position, here[position]
            here[position] = mask if action < bounds[0] else here[position]
            if bounds[0] <= action < bounds[1]:  # rare: drawn only then
                here[position] = below(stream(replacement_key, position), vocab_size)
        ends[row + 1] = made


@inlined
def _lowest_bit(bits):
    """Return the number of the lowest bit that is set."""
    return _BIT_OF[((bits & (~bits + _1)) * _DE_BRUIJN) >> _58]


@inlined
def _find_special(here, special, places):
    """Write where the ids of an instance are special ones; return how many are."""
    first, second = here.dtype.type(special[0]), here.dtype.type(special[1])
    found = 0
    for position in range(len(here)):
        if (here[position] == first) | (here[position] == second):
            places[found] = position
            found += 1
    return found


@inlined
def _choose_tokens(key, wanted, here, special, work, chosen):
    """Draw positions one after the other from those that are left (Fisher-Yates)."""
    order, places, taken = work  # order[place] is place between rows: only what a row changes is put back
    specials = _find_special(here, special, places)
    count = len(here) - specials
    order_key, room = mix_2(key, _ORDER), min(wanted, count)
    for index in range(room):
        other = index + below(stream(order_key, index), count - index)
        position = order[other]
        order[other], taken[index] = order[index], other
        for number in range(specials):  # from the number among the others to the place among all
            position += position >= places[number]
        chosen[position >> 6] |= _1 << np.uint64(position & 63)
    for index in range(room):
        order[taken[index]] = taken[index]


@inlined
def _choose_words(is_span, key, wanted, here, special, is_subword, work, chosen):
    """Take words in random order while they fit, drawn only as far as needed."""
    order, words, candidates = work
    count = num_words = 0
    for position in range(len(here)):
        candidates[count] = position  # stays only if it is one
        count += (here[position] != special[0]) & (here[position] != special[1])
    for index in range(count):
        # A ## piece joins the candidate before it, also across the middle [SEP], as in the original.
        if index == 0 or not is_subword[here[candidates[index]]]:
            words[num_words] = index
            num_words += 1
    words[num_words] = count
    room = min(wanted, count)
    for index in range(num_words):
        order[index] = index
    order_key, length_key = mix_2(key, _ORDER), mix_2(key, _SPAN_LENGTH)
    for index in range(num_words):
        if room == 0:
            return
        other = index + below(stream(order_key, index), num_words - index)
        first_word = order[other]
        order[other] = order[index]
        run = 1
        if is_span:
            draw = uniform(stream(length_key, index))
            for bound in LONGER_SPAN:
                run += draw >= bound
        for word in range(first_word, min(first_word + run, num_words)):
            first, size = words[word], words[word + 1] - words[word]
            if size > room or chosen[candidates[first] >> 6] >> np.uint64(candidates[first] & 63) & _1:
                break
            if word > first_word and candidates[first] != candidates[first - 1] + 1:
                break  # a [SEP] lies between
            for candidate in range(first, first + size):
                chosen[candidates[candidate] >> 6] |= _1 << np.uint64(candidates[candidate] & 63)
            room -= size
