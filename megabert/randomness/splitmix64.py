"""The 64-bit hash behind all keyed random numbers, written once for numpy and for compiled loops.

It is the generator SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators"): a counter
that grows by the golden ratio, and a finalizer that scrambles it. Every function takes and returns 64-bit words: numpy
arrays when `megabert.randomness.keyed` calls it, single words when a compiled loop does
(`megabert.randomness.keyed_loops`). Sums and products wrap modulo 2**64. Published shards depend on every bit of this
file.
"""

from typing import Any

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 divided by the golden ratio: the step of the counter
# The finalizer's multipliers ("mix13" of Stafford 2011, as in Java's SplittableRandom).
FIRST = np.uint64(0xBF58476D1CE4E5B9)
SECOND = np.uint64(0x94D049BB133111EB)
# Treats the key and the next word of `extend` unlike each other (a multiplier of PCG, O'Neill 2014).
MULTIPLIER = np.uint64(0xD1342543DE82EF95)
_1, _11, _27, _30, _31, _32 = (np.uint64(number) for number in (1, 11, 27, 30, 31, 32))


def scramble(word: Any) -> Any:
    """Mix the bits of a word, so that each bit of the input changes half of the output's bits; a bijection."""
    word = (word ^ (word >> _30)) * FIRST
    word = (word ^ (word >> _27)) * SECOND
    return word ^ (word >> _31)


def begin(count: Any) -> Any:
    """Return what the hash of so many words starts from: the number of words is hashed as well."""
    return scramble(count + GOLDEN)


def extend(key: Any, word: Any) -> Any:
    """Take one more word into a key that `begin` started."""
    # A plain key ^ scramble(word) would make keys with swapped roles collide, for example (0,) and (2, 1).
    return scramble(key * MULTIPLIER + scramble(word + GOLDEN))


def element(key: Any, counter: Any) -> Any:
    """Return element ``counter`` (from 0) of the SplitMix64 sequence that starts at ``key``."""
    return scramble(key + (counter + _1) * GOLDEN)


def fraction(key: Any) -> Any:
    """Turn the upper 53 bits of a key, as many as a float64 holds exactly, into a number in [0, 1)."""
    return (key >> _11) * 2.0**-53


def scale(key: Any, bound: Any) -> Any:
    """Turn the upper 32 bits of a key into a whole number in [0, bound), for bounds up to 2**32.

    Multiply and shift (Lemire 2019, "Fast random integer generation in an interval") without rejection: the probability
    of a value is off by at most bound / 2**32 of itself. The product of 32 and 32 bits fits into 64.
    """
    return ((key >> _32) * bound) >> _32
