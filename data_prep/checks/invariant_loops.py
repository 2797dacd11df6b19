"""The rules of `data_prep.checks.invariants` over a record batch, twice; and a count of how its predictions are shown.

`first_broken` names the rule that each row breaks, token by token. `is_sound` only tells whether all rows keep all
rules, in an eighth of the time, since it looks up hardly any token. Its trick is counting: [CLS] and [SEP] are in their
places and every [MASK] is a prediction; if the batch holds no more special tokens than these, none is in the text. It
counts many tokens at once. Only where a batch is not sound `first_broken` has to say why.
"""

# T tokens, M predictions, R rows

import numpy as np

from megabert.foundation.compiled import compiled, inlined

SOUND = 255
# The rules, in the order in which a row is held against them; `invariants.RULES` says them in words.
LENGTH, SEGMENT, LABEL, COUNTS, POSITIONS, VOCABULARY, SPECIALS, SHARE, PART_OF_WORD, INSIDE_WORD = range(10)
# Kinds of pieces: one of [PAD], [CLS], [SEP], [MASK]; one that continues a word; 0 any other.
SPECIAL, SUBWORD = 1, 2


@compiled
def first_broken(batch, rules, broken_R):
    """Write the number of the first broken rule of each row, or `SOUND`.

    Args:
        batch: `data_prep.checks.invariants.Batch`.
        rules: `data_prep.checks.invariants.Rules`.
        broken_R: Written.
    """
    limits = rules.limits
    for row in range(len(broken_R)):
        broken = _frame(row, batch, limits)
        if broken == SOUND:
            broken = _predictions(row, batch, rules)
        if broken == SOUND:
            broken = _tokens(row, batch, rules)
        broken_R[row] = broken


@inlined
def _frame(row, batch, limits):
    """Check the frame of a row: length, start of B, label, number of predictions."""
    length, b_start = batch.token_starts[row + 1] - batch.token_starts[row], batch.segment_b_starts[row]
    predictions = batch.masked_starts[row + 1] - batch.masked_starts[row]
    originals = batch.masked_id_starts[row + 1] - batch.masked_id_starts[row]
    if length < limits.shortest or length > limits.longest:
        return LENGTH
    # [CLS] A [SEP] B [SEP], with a token at least on each side; or one segment, where B starts after the end.
    if limits.has_pairs:
        if b_start < 3 or b_start > length - 2:
            return SEGMENT
    elif b_start != length:
        return SEGMENT
    if batch.next_sentence_labels[row] > limits.largest_label:
        return LABEL
    if predictions < 0 or predictions > limits.most_predictions or predictions != originals:
        return COUNTS
    return SOUND


@inlined
def _predictions(row, batch, rules):
    """Check that predictions ascend, spare the specials, are of the vocabulary, and are as many as the length wants."""
    offsets, _, b_starts, ends_M, positions_M, ends_originals, originals_M, _, _ = batch
    last, previous = offsets[row + 1] - offsets[row] - 1, 0
    predictions, wanted = ends_M[row + 1] - ends_M[row], rules.wanted[last + 1]
    for index in range(predictions):
        position = positions_M[ends_M[row] + index]
        if position <= previous or position >= last or position == b_starts[row] - 1:
            return POSITIONS
        if originals_M[ends_originals[row] + index] >= len(rules.kinds):
            return VOCABULARY
        previous = position
    # Where words are masked whole, some of the wanted number may be left over.
    if predictions > wanted or (predictions < wanted and not rules.limits.has_words):
        return SHARE
    return SOUND


@inlined
def _tokens(row, batch, rules):
    """Check every token of a row as it was before masking."""
    offsets, ids_T, b_starts, ends_M, positions_M, ends_originals, originals_M, _, _ = batch
    limits, special, kinds, _ = rules
    start, last, b_start = offsets[row], offsets[row + 1] - offsets[row] - 1, b_starts[row]
    predicted, end = ends_M[row], ends_M[row + 1]
    to_original = ends_originals[row] - ends_M[row]
    was_predicted = False
    for position in range(last + 1):
        token = ids_T[start + position]
        if token >= len(kinds):
            return VOCABULARY
        # The next prediction of the row is either here or further on.
        is_predicted = predicted < end and positions_M[predicted] == position
        if is_predicted:
            token = originals_M[predicted + to_original]
            predicted += 1
        if position == 0 or position == last or position == b_start - 1:
            if token != (special.cls if position == 0 else special.sep):
                return SPECIALS
        elif kinds[token]:
            if kinds[token] == SPECIAL:
                return SPECIALS
            # A piece that continues a word: not at a side's start, and predicted exactly if the piece before it is.
            is_first = position == 1 or position == b_start
            if is_first and limits.has_whole_sides:
                return INSIDE_WORD
            if not is_first and limits.has_words and is_predicted != was_predicted:
                return PART_OF_WORD
        was_predicted = is_predicted
    return SOUND


@compiled
def is_sound(batch, rules):
    """Tell whether no row breaks a rule; `first_broken` has the same arguments."""
    offsets, ids_T, b_starts, ends_M, positions_M, ends_originals, originals_M, labels, _ = batch
    limits, special, kinds, wanted = rules
    has_words, has_whole_sides = limits.has_words, limits.has_whole_sides
    # One pass over all tokens, many at once: how many are special, and whether all are of the vocabulary. No original
    # may be special.
    specials, largest = _scan(ids_T, special)
    special_originals, largest_original = _scan(originals_M, special)
    if largest >= len(kinds) or largest_original >= len(kinds) or special_originals:
        return False
    # The specials that there may be: [CLS] and [SEP] of each row, and the predictions that show one, mostly [MASK].
    allowed = len(labels) * (3 if limits.has_pairs else 2)
    for row in range(len(labels)):
        length, b_start = offsets[row + 1] - offsets[row], np.int64(b_starts[row])
        first, first_original, predictions = ends_M[row], ends_originals[row], ends_M[row + 1] - ends_M[row]
        if _frame(row, batch, limits) != SOUND:
            return False
        if predictions > wanted[length] or predictions < (0 if has_words else wanted[length]):
            return False
        ids, positions = ids_T[offsets[row] : offsets[row + 1]], positions_M[first : first + predictions]
        if ids[0] != special.cls or ids[b_start - 1] != special.sep or ids[length - 1] != special.sep:
            return False
        first_of_a, first_of_b, previous = ids[1], ids[min(b_start, length - 1)], 0
        for index in range(predictions):
            position = positions[index]
            if position <= previous or position >= length - 1 or position == b_start - 1:
                return False
            if position == b_start:
                first_of_b = originals_M[first_original + index]
            allowed += _is_special(ids[position], special)
            previous = position
        if has_whole_sides:
            if predictions > 0 and positions[0] == 1:
                first_of_a = originals_M[first_original]
            if kinds[first_of_a] == SUBWORD or kinds[first_of_b] == SUBWORD:
                return False
        if has_words and _is_word_cut(ids, b_start, positions, originals_M, first_original, kinds):
            return False
    return specials == allowed


@inlined
def _is_word_cut(ids, b_start, positions, originals_M, first_original, kinds):
    """Tell whether a run of predictions begins or ends inside a word: only the ends of runs have to be looked up."""
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
    pad, _, cls, sep, mask = special
    return (token == cls) | (token == sep) | (token == mask) | (token == pad)


@inlined
def _scan(ids, special):
    """Return how many ids are special, and the largest; without branches, so that the compiler takes many at once."""
    specials, largest = np.uint32(0), special.cls
    for index in range(len(ids)):
        specials = np.uint32(specials + np.uint32(_is_special(ids[index], special)))
        largest = max(largest, ids[index])
    return specials, largest


@compiled
def count_shown(ids_T, offsets, positions_M, ends_M, originals_M, mask):
    """Return the number of predictions that are shown as [MASK], and of others that are shown unchanged.

    Args:
        ids_T: Ids of all instances, masked.
        offsets: Where each instance starts.
        positions_M: Predicted positions, counted from the start of their instance.
        ends_M: Where each row's predictions end, after a 0.
        originals_M: Ids before masking at the predicted positions.
        mask: Id of [MASK], in the type of the ids.
    """
    as_mask = as_original = 0
    for row in range(len(ends_M) - 1):
        ids = ids_T[offsets[row] : offsets[row + 1]]
        for index in range(ends_M[row], ends_M[row + 1]):
            shown = ids[positions_M[index]]
            as_mask += shown == mask
            as_original += (shown == originals_M[index]) & (shown != mask)
    return as_mask, as_original
