"""The loops behind the order of an epoch: the permutation of blocks, and the shuffle of a window's rows."""

import numpy as np

from megabert.compiled import compiled, inlined
from megabert.randomness.keyed_loops import mix_3
from megabert.randomness.sort_loops import order_of
from megabert.randomness.splitmix64 import extend

_ROUNDS = 6
_1 = np.uint64(1)
_MOST_NUMBERS = 1 << 16
_NUMBER = np.uint64(_MOST_NUMBERS - 1)
_DIGIT_BITS = 9
_DIGIT = np.uint64((1 << _DIGIT_BITS) - 1)


@compiled
def permute(values, size, key, half_bits, is_inverse):
    """Apply a Feistel network to each value until it is below ``size`` again (cycle walking).

    The network permutes ``range(2 ** (2 * half_bits))``. Repeating a permutation always leads back to where it began,
    so following each value to the next one inside ``size`` is again a permutation, now of ``range(size)``.

    Args:
        values: Int64, 0 to ``size - 1``.
        size: Uint64, at most ``2 ** (2 * half_bits)``.
        key: Uint64.
        half_bits: Uint64, bits of each half of the network.
        is_inverse: Whether to undo the permutation.

    Returns:
        Int64, the image of each value.
    """
    images = np.empty(len(values), np.int64)
    for index, value in enumerate(values):
        word = _network(np.uint64(value), key, half_bits, is_inverse)
        while word >= size:
            word = _network(word, key, half_bits, is_inverse)
        images[index] = word
    return images


@inlined
def _network(word, key, half_bits, is_inverse):
    """Apply all rounds to one word."""
    mask = (_1 << half_bits) - _1
    left, right = word >> half_bits, word & mask
    # With its halves exchanged before and after, a round undoes itself: the inverse is the same rounds, last first.
    if is_inverse:
        left, right = right, left
    for turn in range(_ROUNDS):
        number = _ROUNDS - 1 - turn if is_inverse else turn
        left, right = right, left ^ (mix_3(key, number, right) & mask)
    if is_inverse:
        left, right = right, left
    return (left << half_bits) | right


@compiled
def shuffled(key, size):
    """Return ``range(size)`` in the order of the hashes of its numbers, equal hashes in the order of the numbers.

    A word holds the upper 48 bits of a hash and, below them, its number. Two passes of a radix sort, each by 9 bits and
    in the order of the one before, leave the words in order but for some neighbors, which insertion exchanges.

    Args:
        key: Uint64, from `mix_before`: the hash of a number is ``extend(key, number)``.
        size: How many numbers.
    """
    hashes = np.empty(size, np.uint64)
    for number in range(size):
        hashes[number] = extend(key, np.uint64(number))
    words, others = (hashes & ~_NUMBER) | np.arange(size).astype(np.uint64), np.empty_like(hashes)
    _pass(words, others, np.uint64(64 - 2 * _DIGIT_BITS))
    _pass(others, words, np.uint64(64 - _DIGIT_BITS))
    for index in range(1, size):
        word, slot = words[index], index
        while slot > 0 and words[slot - 1] > word:
            words[slot] = words[slot - 1]
            slot -= 1
        words[slot] = word

    # Where two hashes agree in 48 bits, once in a hundred thousand windows, the lower 16 decide.
    is_equal = size > _MOST_NUMBERS
    for index in range(1, size):
        is_equal |= (words[index] ^ words[index - 1]) <= _NUMBER
    return order_of(hashes) if is_equal else (words & _NUMBER).astype(np.int64)


@inlined
def _pass(words, others, shift):
    """Copy words to others in the order of a digit, equal ones in the order in which they are."""
    slots = np.zeros(1 << _DIGIT_BITS, np.int32)
    for word in words:
        slots[(word >> shift) & _DIGIT] += 1
    total = 0
    for digit in range(len(slots)):
        slots[digit], total = total, total + slots[digit]
    for word in words:
        digit = (word >> shift) & _DIGIT
        others[slots[digit]] = word
        slots[digit] += 1
