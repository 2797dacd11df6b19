"""Keyed draws inside compiled loops, and the order that keys give.

A draw takes one key and gives the same number as in `keyed`, since numba compiles the functions
that numpy runs. This file adds conversions, since a loop's counters are signed, and one function for each
number of words, since a loop cannot take any number of them.

Things are shuffled by the order of random keys: `order_of` sorts any numbers.
"""

import numpy as np

from megabert.foundation.compiled import compiled, inlined, usable_in_loops
from megabert.foundation.randomness.keyed import begin, element, extend, fraction, scale, scramble

for _function in (scramble, begin, extend, element, fraction, scale):
    usable_in_loops(_function)

_LARGEST_BOUND = np.int64(1 << 32)  # of `scale`
_1 = np.uint64(1)
# `order_of` sorts by three digits: 2048 counters are 16 KiB and stay in the first cache, and three digits make 33 bits.
_DIGIT_BITS, _DIGITS = 11, 3
_DIGIT_SHIFT, _DIGIT_MASK = np.uint64(_DIGIT_BITS), np.uint64((1 << _DIGIT_BITS) - 1)
_SORTED_BITS = np.uint64(_DIGITS * _DIGIT_BITS)


@inlined
def mix_2(first, second):
    """Return ``mix(first, second)``."""
    return extend(extend(begin(np.uint64(2)), np.uint64(first)), np.uint64(second))


@inlined
def mix_3(first, second, third):
    """Return ``mix(first, second, third)``."""
    return extend(extend(extend(begin(np.uint64(3)), np.uint64(first)), np.uint64(second)), np.uint64(third))


@inlined
def stream(key, counter):
    """Return element ``counter`` of the sequence that starts at ``key``."""
    return element(key, np.uint64(counter))


@inlined
def uniform(key):
    """Return a number in [0, 1)."""
    return fraction(key)


@inlined
def below(key, bound):
    """Return an integer in [0, bound); above 2**32 by the remainder of all 64 bits."""
    if bound > _LARGEST_BOUND:
        return np.int64(key % np.uint64(bound))
    return np.int64(scale(key, np.uint64(bound)))


@compiled
def order_of(numbers):
    """Return the rows in ascending order of their numbers, equal ones by row; faster than `numpy.argsort`.

    A radix sort of the upper 33 bits in use: the numbers are sorted by their lowest digit of 11 bits, then by the next,
    and so on; each round keeps the order of the one before among equal digits, so after the last round all is in order.
    Bits below the 33 are not sorted that way. Hashes that agree in their upper 33 bits are rare and next to each other
    by then, so an insertion sort over the whole, one comparison per number, finishes the work.

    Args:
        numbers: Not negative; below 2**33, or hashes. Others are sorted as well, but slowly where many agree in their
            upper 33 bits.
    """
    # The lowest bit that is sorted by radix: 0 for numbers below 2**33.
    largest = np.uint64(0)
    for number in numbers:
        largest = max(largest, np.uint64(number))
    shift = np.uint64(0)
    while largest >> shift >> _SORTED_BITS:
        shift += _1
    words, rows = numbers.astype(np.uint64), np.arange(len(numbers))
    other_words, other_rows = np.empty_like(words), np.empty_like(rows)
    next_slots = np.empty(1 << _DIGIT_BITS, np.int64)
    while shift < 64 and largest >> shift:
        # How often each digit occurs, and from that where the first number with each digit goes.
        next_slots[:] = 0
        for word in words:
            next_slots[(word >> shift) & _DIGIT_MASK] += 1
        total = 0
        for digit in range(len(next_slots)):
            next_slots[digit], total = total, total + next_slots[digit]
        # Every number to its place, in order; then the two pairs of arrays change their roles.
        for index in range(len(words)):
            digit = (words[index] >> shift) & _DIGIT_MASK
            other_words[next_slots[digit]], other_rows[next_slots[digit]] = words[index], rows[index]
            next_slots[digit] += 1
        words, other_words, rows, other_rows = other_words, words, other_rows, rows
        shift += _DIGIT_SHIFT
    _insert_in_order(words, rows)
    return rows


@inlined
def _insert_in_order(words, rows):
    """Finish the order of numbers that is right but for their lowest bits: each moves down past all that are larger."""
    for index in range(1, len(words)):
        word, row = words[index], rows[index]
        slot = index
        while slot > 0 and words[slot - 1] > word:
            words[slot], rows[slot] = words[slot - 1], rows[slot - 1]
            slot -= 1
        words[slot], rows[slot] = word, row
