"""The rules of `invariants` for a record batch: `first_broken` names them, `is_sound` tells whether all hold.

`is_sound` takes an eighth of the time, since it hardly looks up a token. Where [CLS] and [SEP] stand in their places
and a batch holds no more special tokens than these and the masks, none stands in the text; it counts many at once.
"""

# T tokens, M predictions, R rows

import numpy as np

from megabert.compiled import compiled, inlined

SOUND = 255
LENGTH, SEGMENT, LABEL, COUNTS, POSITIONS, VOCABULARY, SPECIALS, SHARE, PART_OF_WORD, INSIDE_WORD = range(10)
SPECIAL, SUBWORD = 1, 2  # what a piece is: of [PAD], [CLS], [SEP], [MASK]; one that continues a word


@compiled
def first_broken(columns, bounds, special, kinds, wanted, broken_R):
    """Write the number of the first broken rule of each row, or `SOUND`.

    Args:
        columns: Ids, offsets; starts of B; positions, offsets; original ids, offsets; labels.
        bounds: Shortest and longest length, most predictions, largest label, whether there are pairs, whether words are
            masked whole, whether sides start with words.
        special: Ids of [CLS], [SEP], [MASK] and [PAD], in the type of the ids: 16 bits are compared faster than 64.
        kinds: What each piece of the vocabulary is.
        wanted: Number of predictions for each length up to the longest.
        broken_R: Written.
    """
    for row in range(len(broken_R)):
        broken = _frame(row, columns, bounds)
        if broken == SOUND:
            broken = _predictions(row, columns, len(kinds), wanted, bounds[5])
        if broken == SOUND:
            broken = _tokens(row, columns, bounds, special, kinds)
        broken_R[row] = broken


@inlined
def _frame(row, columns, bounds):
    _, offsets, b_starts, _, ends_M, _, ends_originals, labels = columns
    shortest, longest, most, largest_label, has_pairs, _, _ = bounds
    length, b_start = offsets[row + 1] - offsets[row], b_starts[row]
    predictions = ends_M[row + 1] - ends_M[row]
    if length < shortest or length > longest:
        return LENGTH
    if has_pairs:
        if b_start < 3 or b_start > length - 2:
            return SEGMENT
    elif b_start != length:
        return SEGMENT
    if labels[row] > largest_label:
        return LABEL
    if predictions < 0 or predictions > most or predictions != ends_originals[row + 1] - ends_originals[row]:
        return COUNTS
    return SOUND


@inlined
def _predictions(row, columns, vocab_size, wanted, has_words):
    _, offsets, b_starts, positions_M, ends_M, originals_M, ends_originals, _ = columns
    last, before = offsets[row + 1] - offsets[row] - 1, 0
    predictions = ends_M[row + 1] - ends_M[row]
    for index in range(predictions):
        position = positions_M[ends_M[row] + index]
        if position <= before or position >= last or position == b_starts[row] - 1:
            return POSITIONS
        if originals_M[ends_originals[row] + index] >= vocab_size:
            return VOCABULARY
        before = position
    # Where words are masked whole some of the wanted number may be left over.
    if predictions > wanted[last + 1] or (predictions < wanted[last + 1] and not has_words):
        return SHARE
    return SOUND


@inlined
def _tokens(row, columns, bounds, special, kinds):
    ids_T, offsets, b_starts, positions_M, ends_M, originals_M, ends_originals, _ = columns
    has_words, has_whole_sides = bounds[5], bounds[6]
    start, last, b_start = offsets[row], offsets[row + 1] - offsets[row] - 1, b_starts[row]
    predicted, end = ends_M[row], ends_M[row + 1]
    to_original = ends_originals[row] - ends_M[row]
    was_predicted = False
    for position in range(last + 1):
        token = ids_T[start + position]
        if token >= len(kinds):
            return VOCABULARY
        is_predicted = predicted < end and positions_M[predicted] == position
        if is_predicted:
            token = originals_M[predicted + to_original]
            predicted += 1
        if position == 0 or position == last or position == b_start - 1:
            if token != (special[0] if position == 0 else special[1]):
                return SPECIALS
        elif kinds[token]:
            if kinds[token] == SPECIAL:
                return SPECIALS
            is_first = position == 1 or position == b_start
            if is_first and has_whole_sides:
                return INSIDE_WORD
            if not is_first and has_words and is_predicted != was_predicted:
                return PART_OF_WORD
        was_predicted = is_predicted
    return SOUND


@compiled
def is_sound(columns, bounds, special, kinds, wanted):
    """Tell whether no row breaks a rule; the arguments are those of `first_broken`."""
    ids_T, offsets, b_starts, positions_M, ends_M, originals_M, ends_originals, labels = columns
    has_pairs, has_words, has_whole_sides = bounds[4:]
    found, largest = _scan(ids_T, special)
    found_originals, largest_original = _scan(originals_M, special)
    if largest >= len(kinds) or largest_original >= len(kinds) or found_originals:
        return False
    allowed = len(labels) * (3 if has_pairs else 2)
    for row in range(len(labels)):
        length, b_start = offsets[row + 1] - offsets[row], np.int64(b_starts[row])
        first, first_original, predictions = ends_M[row], ends_originals[row], ends_M[row + 1] - ends_M[row]
        if _frame(row, columns, bounds) != SOUND:
            return False
        if predictions > wanted[length] or predictions < (0 if has_words else wanted[length]):
            return False
        ids, positions = ids_T[offsets[row] : offsets[row + 1]], positions_M[first : first + predictions]
        if ids[0] != special[0] or ids[b_start - 1] != special[1] or ids[length - 1] != special[1]:
            return False
        first_of_a, first_of_b, before = ids[1], ids[min(b_start, length - 1)], 0
        for index in range(predictions):
            position = positions[index]
            if position <= before or position >= length - 1 or position == b_start - 1:
                return False
            if position == b_start:
                first_of_b = originals_M[first_original + index]
            allowed += _is_special(ids[position], special)
            before = position
        if has_whole_sides:
            if predictions > 0 and positions[0] == 1:
                first_of_a = originals_M[first_original]
            if kinds[first_of_a] == SUBWORD or kinds[first_of_b] == SUBWORD:
                return False
        if has_words and _is_word_cut(ids, b_start, positions, originals_M, first_original, kinds):
            return False
    return found == allowed


@inlined
def _is_word_cut(ids, b_start, positions, originals_M, first_original, kinds):
    """Tell whether a run of predictions begins or ends inside a word."""
    for index in range(len(positions)):
        position = positions[index]
        begins = index == 0 or positions[index - 1] + 1 != position
        if begins and position != 1 and position != b_start and kinds[originals_M[first_original + index]] == SUBWORD:
            return True
        ends = index + 1 == len(positions) or positions[index + 1] != position + 1
        if ends and kinds[ids[position + 1]] == SUBWORD:
            return True
    return False


@inlined
def _is_special(token, special):
    cls, sep, mask, pad = special
    return (token == cls) | (token == sep) | (token == mask) | (token == pad)


@inlined
def _scan(ids, special):
    """Return how many ids are special, and the largest."""
    found, largest = np.uint32(0), special[0]
    for index in range(len(ids)):
        found = np.uint32(found + np.uint32(_is_special(ids[index], special)))
        largest = max(largest, ids[index])
    return found, largest
