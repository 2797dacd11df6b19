"""The rules of `data_prep.checks.invariants` over a record batch, row by row.

Hardly any token is looked up. The trick is counting: [CLS] and [SEP] are in their places and every [MASK] is a
prediction; if a row holds no more special tokens than these, none is in its text. The compiler counts many at once.
"""

# T tokens, M predictions, R rows

import numpy as np

from megabert.foundation.compiled import compiled, inlined

SOUND = 255
# The rules, in the order in which a row is held against them; `invariants.RULES` says them in words.
POSITIONS, SHARE, SPECIALS, PART_OF_WORD, INSIDE_WORD = range(5)


@compiled
def first_broken(batch, rules, broken_R):
    """Write the number of the first broken rule of each row, or `SOUND`.

    Args:
        batch: `megabert.tokens.shards.columns.FlatInstances` in which `find_nonsense` finds nothing.
        rules: `data_prep.checks.invariants.Rules`.
        broken_R: Written.
    """
    for row in range(len(broken_R)):
        broken_R[row] = _broken(row, batch, rules)


@inlined
def _broken(row, batch, rules):
    offsets, ids_T, b_starts, ends_M, positions_M, _, originals_M, _, _ = batch
    special, is_subword, wanted, has_words, has_whole_sides = rules
    ids, first, stop = ids_T[offsets[row] : offsets[row + 1]], ends_M[row], ends_M[row + 1]
    last, b_start, predictions = len(ids) - 1, np.int64(b_starts[row]), stop - first
    positions, originals = positions_M[first:stop], originals_M[first:stop]
    # [CLS] A [SEP] B [SEP], or [CLS] A [SEP], whose B would start after the end.
    expected = 2 + (b_start <= last)
    first_of_a, first_of_b = ids[1], ids[min(b_start, last)]
    for index in range(predictions):
        position = positions[index]
        if position == 0 or position == last or position == b_start - 1:
            return POSITIONS
        if _is_special(originals[index], special):
            return SPECIALS
        expected += _is_special(ids[position], special)
        if position == 1:
            first_of_a = originals[index]
        if position == b_start:
            first_of_b = originals[index]
    # Where words are masked whole, some of the wanted number may be left over.
    if predictions > wanted[last + 1] or predictions < (0 if has_words else wanted[last + 1]):
        return SHARE
    if ids[0] != special.cls or ids[b_start - 1] != special.sep or ids[last] != special.sep:
        return SPECIALS
    if _count_specials(ids, special) != expected:
        return SPECIALS
    if has_words and _is_word_cut(ids, b_start, positions, originals, is_subword):
        return PART_OF_WORD
    if has_whole_sides and (is_subword[first_of_a] or is_subword[first_of_b]):
        return INSIDE_WORD
    return SOUND


@inlined
def _is_word_cut(ids, b_start, positions, originals, is_subword):
    """Tell whether a run of predictions begins or ends inside a word: only the ends of runs have to be looked up."""
    for index in range(len(positions)):
        position = positions[index]
        begins = index == 0 or positions[index - 1] + 1 != position
        if begins and position != 1 and position != b_start and is_subword[originals[index]]:
            return True
        ends = index + 1 == len(positions) or positions[index + 1] != position + 1
        if ends and is_subword[ids[position + 1]]:
            return True
    return False


@inlined
def _is_special(token, special):
    pad, _, cls, sep, mask = special
    return (token == cls) | (token == sep) | (token == mask) | (token == pad)


@inlined
def _count_specials(ids, special):
    """Return how many ids are special; without branches, so that the compiler takes many at once."""
    specials = np.uint32(0)
    for index in range(len(ids)):
        specials = np.uint32(specials + np.uint32(_is_special(ids[index], special)))
    return specials
