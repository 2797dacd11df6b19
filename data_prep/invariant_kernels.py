"""The rules of `data_prep.invariants`, instance by instance, in one pass over a record batch."""

# T tokens, M predictions, R rows

from megabert.compiled import compiled, inlined

SOUND = 255
LENGTH, SEGMENT, LABEL, COUNTS, POSITIONS, VOCABULARY, SPECIALS, SHARE, PART_OF_WORD, INSIDE_WORD = range(10)
SPECIAL, SUBWORD = 1, 2  # what a piece is: of [PAD], [CLS], [SEP], [MASK]; one that continues a word


@compiled
def first_broken(columns, bounds, special, kinds, wanted_R, broken_R):
    """Write the number of the first broken rule of each row, or `SOUND`.

    Args:
        columns: Ids, offsets; starts of B; positions, offsets; original ids, offsets; labels.
        bounds: Shortest and longest length, most predictions, largest label, whether there are pairs, whether words are
            masked whole, whether sides start with words.
        special: Ids of [CLS] and [SEP].
        kinds: What each piece of the vocabulary is.
        wanted_R: Number of predictions for each row's length.
        broken_R: Written.
    """
    for row in range(len(broken_R)):
        broken = _frame(row, columns, bounds)
        if broken == SOUND:
            broken = _predictions(row, columns, len(kinds), wanted_R[row], bounds[5])
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
    if predictions > most or predictions != ends_originals[row + 1] - ends_originals[row]:
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
    if predictions > wanted or (predictions < wanted and not has_words):
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
