"""MinHash signatures (Broder 1997) of texts, as one key for each band of locality-sensitive hashing.

Two texts are as similar as the shares of *shingles* that they have in common: runs of n units, of words as a rule. A
hash function puts all shingles in an order; that the first shingle of both texts is the same has a probability of just
this similarity (Jaccard's). So r functions agree with a probability of s^r, and one of b bands of r functions each does
with 1 - (1 - s^r)^b.
"""

import numpy as np

from megabert.foundation.compiled import compiled, inlined
from megabert.foundation.randomness.keyed_loops import mix_2, scramble

SEPARATOR, LETTER, SINGLE = 0, 1, 2
"""Kinds of characters: between units, a part of a word, a unit of its own."""
UNITS_AT_ONCE = 512
"""Units that are read before the functions look at their shingles: 4 KiB, which stay in the first cache."""
_BASE = np.uint64(0x9E3779B97F4A7C15)
_SINGLE_SEED, _32 = np.uint64(1) << np.uint64(63), np.uint64(32)


@compiled
def write_band_keys(text, ngram, multipliers, addends, keys):
    """Write the key of each band of one text; return whether it has any unit.

    A function of the signature takes a shingle x to a x + b modulo 2^64, with an odd a: a permutation.

    Args:
        text: Its UTF-8, lower-cased beyond ASCII.
        ngram: Units of a shingle; a text of fewer is one shingle.
        multipliers: The a of each function, odd; the functions of a band are next to each other.
        addends: The b of each.
        keys: One for each band, written.
    """
    units, shingles = np.empty(ngram + UNITS_AT_ONCE, np.uint64), np.empty(UNITS_AT_ONCE + 1, np.uint64)
    smallest = np.full(len(multipliers), np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64)
    index, carried, has_units = 0, 0, False
    while index < len(text):
        index, count = _read_units(text, index, units, carried)
        if count == carried:
            break
        width = ngram if carried else min(ngram, count)
        for start in range(count - width + 1):
            shingle = np.uint64(width)
            for unit in range(start, start + width):
                shingle = shingle * _BASE + units[unit]
            shingles[start] = scramble(shingle)
        for function in range(len(multipliers)):
            multiplier, addend, least = multipliers[function], addends[function], smallest[function]
            for start in range(count - width + 1):
                least = min(least, multiplier * shingles[start] + addend)
            smallest[function] = least
        # The last units begin further shingles.
        has_units, carried = True, min(count, ngram - 1)
        for unit in range(carried):
            units[unit] = units[count - carried + unit]
    rows = len(multipliers) // len(keys)
    for band in range(len(keys)):
        key = np.uint64(band)
        for function in range(band * rows, (band + 1) * rows):
            key = mix_2(key, smallest[function])
        keys[band] = key
    return has_units


@inlined
def _read_units(text, index, units, count):
    """Write the hashes of units from a byte on, after the first ``count``; return the next byte, and their number."""
    word, in_word = np.uint64(0), False
    while index < len(text) and (in_word or count < len(units) - 1):
        code, size = code_at(text, index)
        kind = _kind_of(code)
        if kind == LETTER:
            if 0x41 <= code <= 0x5A:
                code += 0x20
            word = (word + np.uint64(code)) * _BASE
            word, in_word = word ^ (word >> _32), True
            index += size
            continue
        if in_word:
            units[count] = scramble(word)
            word, in_word = np.uint64(0), False
            count += 1
        else:
            index += size
            if kind == SINGLE:
                units[count] = scramble(_SINGLE_SEED + np.uint64(code))
                count += 1
    if in_word:
        units[count] = scramble(word)
        count += 1
    return index, count


@inlined
def code_at(text, index):
    """Return the character that begins at a byte of sound UTF-8, and how many bytes it has."""
    first = np.int64(text[index])
    if first < 0x80:
        return first, 1
    if first < 0xE0:
        return (first & 0x1F) << 6 | (text[index + 1] & 0x3F), 2
    if first < 0xF0:
        return (first & 0x0F) << 12 | (text[index + 1] & 0x3F) << 6 | (text[index + 2] & 0x3F), 3
    tail = (text[index + 1] & 0x3F) << 12 | (text[index + 2] & 0x3F) << 6 | (text[index + 3] & 0x3F)
    return (first & 0x07) << 18 | tail, 4


@inlined
def _kind_of(code):
    """Return the kind of a character. Scripts without spaces give units of single characters."""
    if code < 0x80:
        is_letter = 0x61 <= (code | 0x20) <= 0x7A or 0x30 <= code <= 0x39
        return LETTER if is_letter else SEPARATOR
    if code < 0x0E00:
        is_mark = (code < 0xC0 and code not in (0xAA, 0xB5, 0xBA)) or code in (0xD7, 0xF7)
        # Full stops, commas and question marks of Greek, Armenian, Hebrew, Arabic and Indic scripts.
        is_mark |= code in (0x37E, 0x387, 0x589, 0x5BE, 0x5C3, 0x60C, 0x61B, 0x61F, 0x66A, 0x6D4, 0x964, 0x965)
        return SEPARATOR if is_mark else LETTER
    if code <= 0x0EFF or 0x1000 <= code <= 0x109F or 0x1780 <= code <= 0x17FF:
        return SINGLE  # Thai, Lao, Burmese, Khmer
    if 0x2000 <= code <= 0x2BFF or 0x2E00 <= code <= 0x2E7F or 0xFE10 <= code <= 0xFE6F:
        return SEPARATOR  # punctuation and symbols
    if 0x2E80 <= code <= 0x9FFF or 0xF900 <= code <= 0xFAFF or 0x20000 <= code <= 0x3FFFF:
        is_mark = 0x3000 <= code <= 0x3004 or 0x3008 <= code <= 0x3020 or code == 0x3030 or code == 0x30FB
        return SEPARATOR if is_mark else SINGLE  # ideographs and kana
    if 0xFF00 <= code <= 0xFFEF:
        is_letter = 0xFF10 <= code <= 0xFF19 or 0xFF21 <= code <= 0xFF3A or 0xFF41 <= code <= 0xFF5A  # wide Latin
        return LETTER if is_letter else SINGLE if 0xFF66 <= code <= 0xFFDC else SEPARATOR
    return SEPARATOR if 0x1F000 <= code <= 0x1FAFF else LETTER
