"""Hashes of texts: equal texts have equal hashes, and a range of hashes holds a random share of the texts.

Buckets of documents, and the units that look for duplicate paragraphs, are ranges of these hashes. Which range a text
falls into depends on the text alone, so neither the number of workers nor the order of the input changes anything.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray


def hash_text(text: str) -> int:
    """Return 64 bits of the BLAKE2b hash of a text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def hash_range(number: int, ranges: int) -> tuple[int, int]:
    """Return the first hash of range ``number`` of ``ranges`` equal ranges, and the first hash of the next one."""
    return (number << 64) // ranges, ((number + 1) << 64) // ranges


def rows_in_range(hashes: NDArray[np.uint64], low: int, high: int) -> slice:
    """Return the rows of ascending hashes that are from ``low`` to below ``high``."""
    first = np.searchsorted(hashes, np.uint64(low))
    # The end of the last range is 2**64, which no uint64 holds.
    last = len(hashes) if high >= 1 << 64 else np.searchsorted(hashes, np.uint64(high))
    return slice(int(first), int(last))
