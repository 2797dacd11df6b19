"""The draws of `keyed_random` for one key at a time, inside compiled loops; the numbers are the same."""

import numpy as np

from megabert.compiled import inlined
from megabert.randomness import keyed as keyed_random

_GOLDEN = keyed_random.GOLDEN
_FIRST = keyed_random.FIRST
_MULTIPLIER = keyed_random.MULTIPLIER
_SECOND = keyed_random.SECOND
_30, _27, _31, _32, _11, _1 = (np.uint64(bits) for bits in (30, 27, 31, 32, 11, 1))
_FULL = np.int64(1 << 32)


@inlined
def scramble(word):
    """Mix the bits of a word (SplitMix64's finalizer)."""
    word = (word ^ (word >> _30)) * _FIRST
    word = (word ^ (word >> _27)) * _SECOND
    return word ^ (word >> _31)


@inlined
def begin(words):
    """Return what `mix` of so many words starts from."""
    return scramble(np.uint64(words) + _GOLDEN)


@inlined
def extend(key, word):
    """Take one more word into a key that `begin` started."""
    return scramble(key * _MULTIPLIER + scramble(np.uint64(word) + _GOLDEN))


@inlined
def mix_2(first, second):
    """Return ``mix(first, second)``."""
    return extend(extend(begin(2), first), second)


@inlined
def mix_3(first, second, third):
    """Return ``mix(first, second, third)``."""
    return extend(extend(extend(begin(3), first), second), third)


@inlined
def stream(key, counter):
    """Return element ``counter`` of the sequence that starts at ``key``."""
    return scramble(key + (np.uint64(counter) + _1) * _GOLDEN)


@inlined
def uniform(key):
    """Return a number in [0, 1)."""
    return np.float64(key >> _11) * 2.0**-53


@inlined
def below(key, bound):
    """Return an integer in [0, bound); above 2**32 by the remainder of all 64 bits."""
    if bound > _FULL:
        return np.int64(key % np.uint64(bound))
    return np.int64(((key >> _32) * np.uint64(bound)) >> _32)
