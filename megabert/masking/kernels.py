"""Choosing and masking positions, row by row (megabert.masking.static says what is meant)."""

# T tokens of all instances, M predictions of all instances, R rows

import numpy as np

from megabert.compiled import compiled, inlined
from megabert.masking.draw_kernels import below, mix_2, stream, uniform

TOKEN, WHOLE_WORD, SPAN = range(3)
# Draws under an instance's key: the order of words, what happens to a position, what replaces it, lengths of spans.
_ORDER, _ACTION, _REPLACEMENT, _SPAN_LENGTH = 1, 2, 3, 4
MAX_SPAN_WORDS = 10
# A span is longer than k words with probability 0.8^k (SpanBERT: geometric with p = 0.2, at most 10 words).
LONGER_SPAN = tuple(1 - 0.8**words for words in range(1, MAX_SPAN_WORDS))


@compiled
def mask_rows(ids_T, offsets, keys, wanted_R, pieces, is_subword, shares, out_ids_T, positions_M, originals_M, ends):
    """Mask all rows.

    Args:
        ids_T: Ids of all instances.
        offsets: Where each instance starts, and the end.
        keys: Of the instances.
        wanted_R: How many positions to choose at most.
        pieces: Strategy, [CLS], [SEP], [MASK], size of the vocabulary.
        is_subword: By id; empty where the strategy is `TOKEN`.
        shares: Below the first a position becomes [MASK], below the second any piece.
        out_ids_T: Written; may be ``ids_T``.
        positions_M: Written, with room for all that is wanted.
        originals_M: Written, likewise.
        ends: Written: of each instance's predictions, after a 0.
    """
    strategy, cls_id, sep_id, mask_id, vocab_size = pieces
    longest = 0
    for row in range(len(keys)):
        longest = max(longest, offsets[row + 1] - offsets[row])
    candidates, words, order = np.empty(longest, np.int64), np.empty(longest + 1, np.int64), np.empty(longest, np.int64)
    is_chosen = np.zeros(longest, np.bool_)
    made = 0
    for row in range(len(keys)):
        start, length = offsets[row], offsets[row + 1] - offsets[row]
        count = num_words = 0
        for position in range(length):
            token = ids_T[start + position]
            out_ids_T[start + position] = token
            is_chosen[position] = False
            if token != cls_id and token != sep_id:
                # A ## piece joins the candidate before it, also across the middle [SEP], as in the original.
                if strategy == TOKEN or num_words == 0 or not is_subword[token]:
                    words[num_words] = count
                    num_words += 1
                candidates[count] = position
                count += 1
        words[num_words] = count
        _choose(strategy, keys[row], min(wanted_R[row], count), num_words, (words, candidates, order), is_chosen)
        action_key, replacement_key = mix_2(keys[row], _ACTION), mix_2(keys[row], _REPLACEMENT)
        deciding = 0
        for position in range(length):
            if not is_chosen[position]:
                continue
            if strategy != SPAN or position == 0 or not is_chosen[position - 1]:
                deciding = position  # a span is replaced as one, else each position is drawn for itself
            action = uniform(stream(action_key, deciding))
            positions_M[made] = position
            originals_M[made] = ids_T[start + position]
            made += 1
            if action < shares[0]:
                out_ids_T[start + position] = mask_id
            elif action < shares[1]:
                out_ids_T[start + position] = below(stream(replacement_key, position), vocab_size)
        ends[row + 1] = made


@inlined
def _choose(strategy, key, room, num_words, work, is_chosen):
    """Take words in random order while they fit (Fisher-Yates, drawn only as far as needed)."""
    words, candidates, order = work
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
        if strategy == SPAN:
            draw = uniform(stream(length_key, index))
            for bound in LONGER_SPAN:
                run += draw >= bound
        for word in range(first_word, min(first_word + run, num_words)):
            first, size = words[word], words[word + 1] - words[word]
            if size > room or is_chosen[candidates[first]]:
                break
            if word > first_word and candidates[first] != candidates[first - 1] + 1:
                break  # a [SEP] lies between
            for candidate in range(first, first + size):
                is_chosen[candidates[candidate]] = True
            room -= size
