"""A table of recent words of printable ASCII with their ids, and reading such words eight bytes at a time.

A word of up to 16 bytes is two 64-bit numbers, the first byte lowest, which are compared and hashed without a loop over
letters. Its entry holds these numbers and up to four ids, two in each of two more. Another word with the same slot
takes its place.
"""

import numpy as np

from megabert.compiled import inlined
from megabert.randomness.splitmix64 import GOLDEN

REMEMBERED_BYTES, REMEMBERED_IDS = 16, 4  # longer words, and words of more pieces, are cut again each time
_1, _2, _3, _4, _5, _6, _7 = (np.uint64(value) for value in range(1, 8))
_8, _16, _24, _32, _40, _48, _56 = (np.uint64(8 * value) for value in range(1, 8))
_LOW, _NO_IDS = np.uint64(0xFFFFFFFF), ~np.uint64(0)
_FNV_PRIME = np.uint64(0x100000001B3)


@inlined
def slot_of(remembered, first, second):
    """Return where in the table the word of these two numbers is, if it is there."""
    return np.int64((((first ^ (second * _FNV_PRIME)) * GOLDEN) >> _32) & np.uint64(len(remembered) - 1))


@inlined
def recall(remembered, slot, ids, made):
    """Write the ids of an entry; return ``made``, counted on by their number."""
    # Two ids in each number. Both are written unconditionally, and counted only if they are there.
    both = remembered[slot, 2]
    ids[made], ids[made + 1] = np.int32(both & _LOW), np.int32(both >> _32)
    made += 1 + (both >> _32 != _LOW)
    if both >> _32 != _LOW and remembered[slot, 3] != _NO_IDS:
        both = remembered[slot, 3]
        ids[made], ids[made + 1] = np.int32(both & _LOW), np.int32(both >> _32)
        made += 1 + (both >> _32 != _LOW)
    return made


@inlined
def remember(remembered, slot, first, second, ids):
    """Enter a word of four ids or fewer; all bits are set where there is none."""
    if len(ids) > REMEMBERED_IDS:
        return
    entry = remembered[slot]
    entry[0], entry[1], entry[2], entry[3] = first, second, _NO_IDS, _NO_IDS
    for index in range(len(ids)):
        shift, half = _32 * np.uint64(index & 1), 2 + (index >> 1)
        entry[half] = (entry[half] & ~(_LOW << shift)) | (np.uint64(ids[index]) << shift)


@inlined
def load(text, position):
    """Return eight bytes as a number, the first one lowest, with zeros behind the end of the text."""
    if position + 8 <= len(text):
        # Written out, and with unsigned indices, the compiler turns this into a single load.
        at = np.uint64(position)
        low = np.uint64(text[at]) | np.uint64(text[at + _1]) << _8 | np.uint64(text[at + _2]) << _16
        low |= np.uint64(text[at + _3]) << _24 | np.uint64(text[at + _4]) << _32 | np.uint64(text[at + _5]) << _40
        return low | np.uint64(text[at + _6]) << _48 | np.uint64(text[at + _7]) << _56
    number = np.uint64(0)
    for index in range(len(text) - position):
        number |= np.uint64(text[position + index]) << np.uint64(8 * index)
    return number


@inlined
def lowest_bytes(count):
    """Return a mask of the lowest ``count`` bytes: no bit is set for 0 or less, all are for 8 or more."""
    if count <= 0:
        return np.uint64(0)
    return _NO_IDS >> np.uint64(64 - 8 * min(count, 8))
