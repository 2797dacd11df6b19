"""Random numbers that are a pure function of a key: no generator, no state, no order of calls.

A key is built with `mix` from whatever names the draw (seed, stage, document, position, ...), so a result
depends neither on the batch, nor on the worker, nor on what was drawn before. The mixing function is the
finalizer of SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators").
"""

import hashlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST = np.uint64(0xBF58476D1CE4E5B9)
MULTIPLIER = np.uint64(0xD1342543DE82EF95)
SECOND = np.uint64(0x94D049BB133111EB)


def _words(values: ArrayLike) -> NDArray[np.uint64]:
    """Take integers of any kind as 64-bit words; negative ones wrap."""
    if isinstance(values, int):
        values = values & 0xFFFFFFFFFFFFFFFF
        return np.asarray(values, dtype=np.uint64)
    array = np.asarray(values)
    if array.dtype == np.uint64:
        return array
    if array.dtype.kind not in "iub":
        raise TypeError(f"keys are integers, got an array of {array.dtype}.")
    return array.astype(np.int64).view(np.uint64) if array.dtype.kind == "i" else array.astype(np.uint64)


def _scramble(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    words = (words ^ (words >> np.uint64(30))) * FIRST
    words = (words ^ (words >> np.uint64(27))) * SECOND
    return words ^ (words >> np.uint64(31))


def mix(*words: ArrayLike) -> NDArray[np.uint64]:
    """Hash integers, or broadcastable arrays of them, into 64-bit keys.

    The order of the words matters, and so does their number: ``mix(a, b) != mix(b, a)`` and
    ``mix(mix(a), b)`` is another key than ``mix(a, b)``.

    Args:
        *words: Integers or integer arrays; negative values wrap modulo 2**64.

    Returns:
        Uint64 array of the broadcast shape (shape ``()`` where every word is a scalar).
    """
    with np.errstate(over="ignore"):
        key = _scramble(_words(len(words)) + GOLDEN)
        for word in words:
            # The multiplication treats key and word unlike each other; a plain key ^ scramble(word) would
            # make keys with swapped roles collide, e.g. (0,) and (2, 1).
            key = _scramble(key * MULTIPLIER + _scramble(_words(word) + GOLDEN))
    return np.asarray(key, dtype=np.uint64)


def stream(key: ArrayLike, counter: ArrayLike) -> NDArray[np.uint64]:
    """Return element ``counter`` of the SplitMix64 sequence that starts at ``key``.

    Cheaper than `mix`, for many draws under one key. The key must be a result of `mix`: sequences of keys
    that are near each other overlap.

    Args:
        key: Uint64 keys.
        counter: Which element, from 0; broadcasts with ``key``.

    Returns:
        Uint64 array of the broadcast shape.
    """
    with np.errstate(over="ignore"):
        return np.asarray(_scramble(_words(key) + (_words(counter) + np.uint64(1)) * GOLDEN))


def uniform(key: ArrayLike) -> NDArray[np.float64]:
    """Turn keys into float64 numbers uniform in [0, 1), on a grid of 2**-53."""
    return (_words(key) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def below(key: ArrayLike, n: ArrayLike) -> NDArray[np.int64]:
    """Turn keys into integers uniform in [0, n).

    Multiply-shift on the upper 32 bits (Lemire 2019, "Fast random integer generation in an interval"),
    without rejection: a value's probability is off by at most n / 2**32 of itself.

    Args:
        key: Uint64 keys.
        n: Exclusive bound, 1 to 2**32, a number or an array that broadcasts with ``key``.

    Returns:
        Int64 array of the broadcast shape.
    """
    bound = _words(n)
    if np.any(bound < 1) or np.any(bound > np.uint64(1 << 32)):
        raise ValueError(f"below() takes bounds from 1 to 2**32, got {n!r}.")
    # 32 x 32 bits fit into 64; of a full bound 2**32 the product is at most (2**32 - 1) * 2**32.
    return np.asarray(((_words(key) >> np.uint64(32)) * bound) >> np.uint64(32)).astype(np.int64)


def string_key(text: str) -> np.uint64:
    """Hash a string into a 64-bit key, the same on every machine and Python version (BLAKE2b of UTF-8)."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))
