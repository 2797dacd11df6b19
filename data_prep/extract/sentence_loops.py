"""A loop over the bytes of a text that breaks up its very long words, for the splitter of sentences."""

import numpy as np

from megabert.foundation.compiled import compiled, inlined

LETTER, IDEOGRAPH, MARK, SPACE, PUNCTUATION = 1, 2, 3, 4, 5
"""Kinds of characters; 0 is every other one. A mark belongs to the letter before it."""
LONG_WORD = 120
"""Bytes without white space, full stop or slash from which a word is broken up."""
LEAD_IN = 32
"""Bytes of letters before a break in scripts in which sentencex knows words, such as months and abbreviations: more
than it reads after a full stop."""


@compiled
def has_long_word(text):
    """Return whether UTF-8 may have a word of `LONG_WORD` bytes; it does not if every half of one has a separator."""
    for start in range(0, len(text) - LONG_WORD + 1, LONG_WORD // 2):
        position = start
        while position < start + LONG_WORD // 2 and not _is_separator(text[position]):
            position += 1
        if position == start + LONG_WORD // 2:
            return True
    return False


@inlined
def _is_separator(byte):
    return byte == 0x20 or byte == ord(".") or byte == ord("/") or 9 <= byte <= 13


@compiled
def break_words(text, kinds):
    """Write a space of three bytes over a letter in each `LONG_WORD` bytes of a word, if a letter allows it.

    A letter allows it if its neighbours are letters and the next full stop is far; `data_prep.extract.sentences` says
    why.

    Args:
        text: UTF-8; changed in place.
        kinds: The kind of each character up to U+FFFF.

    Returns:
        How many letters were written over, and how many bytes of words are before all marks that may end a sentence.
    """
    word = letters = previous = breaks = steps = position = 0
    stop = 0  # the next full stop, or how far none was found
    while position < len(text):
        byte = text[position]
        if byte < 0xE0 or byte >= 0xF0:
            # One byte, two or four: no letter to write over.
            size = 1 if byte < 0x80 else 2 if byte < 0xE0 else 4
            if byte == ord("!") or byte == ord("?") or byte >= 0x80:
                steps += word
            word = 0 if _is_separator(byte) else word + size
            letters = previous = 0
            position += size
            continue
        kind = _kind(text, position, kinds)
        if word >= LONG_WORD and _is_between_letters(previous, kind, _kind(text, position + 3, kinds), letters):
            stop = max(stop, position)
            end = min(position + LONG_WORD, len(text))
            while stop < end and text[stop] != ord("."):
                stop += 1
            if stop >= end:
                text[position], text[position + 1], text[position + 2] = 0xE1, 0x9A, 0x80  # U+1680
                breaks += 1
                kind = SPACE
        if kind == PUNCTUATION:
            steps += word
        word = 0 if kind == SPACE else word + 3
        letters = letters + 3 if 0 < kind < SPACE else 0
        previous = kind
        position += 3
    return breaks, steps


@inlined
def _is_between_letters(previous, kind, following, letters):
    """Return whether a letter has letters around it: ideographs, or any, with enough more before them."""
    if previous == kind == following == IDEOGRAPH:
        return True
    are_letters = 0 < previous < MARK and 0 < kind < MARK and 0 < following < MARK
    return are_letters and letters >= LEAD_IN


@inlined
def _kind(text, position, kinds):
    """Return the kind of the character of three bytes that begins here; 0 for another one."""
    if position + 2 >= len(text) or not 0xE0 <= text[position] < 0xF0:
        return np.uint8(0)
    high, middle, low = text[position] & 0x0F, text[position + 1] & 0x3F, text[position + 2] & 0x3F
    return kinds[np.int64(high) << 12 | np.int64(middle) << 6 | np.int64(low)]
