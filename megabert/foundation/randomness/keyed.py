"""Random numbers that are a pure function of a key: no generator, no state, no order of calls.

A key is built with `mix` from the names of the draw (seed, step, document, position, ...), so a result depends
neither on the batch, nor on the worker, nor on earlier draws.

The hash is the one of the generator SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number
generators"): a counter that grows by the golden ratio, and a finalizer that scrambles it. It is written once for numpy
and for compiled loops: the first functions below, from `scramble` to `scale`, take and return 64-bit words. These are
numpy arrays when the other functions call, and single words when a loop does (`keyed_loops`). Sums
and products wrap modulo 2**64. Published shards depend on every bit of this file.
"""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
    """Return the key from which the hash of so many words starts: their number is hashed as well."""
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


def _words(values: ArrayLike) -> NDArray[np.uint64]:
    """Take integers of any kind as 64-bit words; negative ones wrap."""
    if isinstance(values, int):  # numpy refuses a negative or a larger one
        return np.asarray(values & 0xFFFFFFFFFFFFFFFF, dtype=np.uint64)
    array = np.asarray(values)
    if array.dtype.kind not in "iub":
        raise TypeError(f"keys are integers, got an array of {array.dtype}.")
    return array.astype(np.uint64, copy=False)


def mix(*words: ArrayLike) -> NDArray[np.uint64]:
    """Hash integers, or broadcastable arrays of them, into 64-bit keys.

    The order of the words matters, and so does their number: ``mix(a, b) != mix(b, a)`` and
    ``mix(mix(a), b)`` is another key than ``mix(a, b)``.

    Args:
        *words: Integers or integer arrays; negative values wrap modulo 2**64.

    Returns:
        Uint64 array of the broadcast shape (shape ``()`` if every word is a scalar).
    """
    with np.errstate(over="ignore"):  # numpy warns of scalars that wrap, not of arrays
        key = begin(_words(len(words)))
        for word in words:
            key = extend(key, _words(word))
    return np.asarray(key, dtype=np.uint64)


def stream(key: ArrayLike, counter: ArrayLike) -> NDArray[np.uint64]:
    """Return element ``counter`` of the sequence that starts at ``key``.

    Cheaper than `mix`, for many draws under one key. The key must be a result of `mix`: sequences of keys
    that are near each other overlap.

    Args:
        key: Uint64 keys.
        counter: Which element, from 0; broadcasts with ``key``.

    Returns:
        Uint64 array of the broadcast shape.
    """
    with np.errstate(over="ignore"):
        return np.asarray(element(_words(key), _words(counter)))


def uniform(key: ArrayLike) -> NDArray[np.float64]:
    """Turn keys into float64 numbers uniform in [0, 1), on a grid of 2**-53."""
    return fraction(_words(key))


def below(key: ArrayLike, n: ArrayLike) -> NDArray[np.int64]:
    """Turn keys into integers uniform in [0, n).

    Args:
        key: Uint64 keys.
        n: Exclusive bound, 1 to 2**32, a number or an array that broadcasts with ``key``.

    Returns:
        Int64 array of the broadcast shape.
    """
    bound = _words(n)
    if np.any(bound < 1) or np.any(bound > np.uint64(1 << 32)):
        raise ValueError(f"below() takes bounds from 1 to 2**32, got {n!r}.")
    return np.asarray(scale(_words(key), bound)).astype(np.int64)


def string_key(text: str) -> np.uint64:
    """Hash a string into a 64-bit key, the same on every machine and Python version (BLAKE2b of UTF-8)."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def order_of(numbers: NDArray[Any]) -> NDArray[np.int64]:
    """Return the rows in ascending order of their numbers, which are not negative, equal ones by row.

    numpy sorts numbers of 16 bits by radix. From the lowest digit of 16 bits to the highest, that sorts all numbers, in
    a third of the time that its stable sort takes. Things are shuffled by the order of random keys.
    """
    words, rows = numbers.astype(np.uint64), np.arange(len(numbers))
    for shift in range(0, int(numbers.max(initial=0)).bit_length(), 16):
        digits = (words[rows] >> np.uint64(shift)).astype(np.uint16)
        rows = rows[np.argsort(digits, kind="stable")]
    return rows
