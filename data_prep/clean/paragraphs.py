"""Exact duplicates of paragraphs over the whole corpus, for the cleaning rule ``duplicate_paragraphs``.

Of a paragraph that occurs in several chunks, the first chunk keeps the first copy. A set of all paragraphs would not
fit into memory, so they are found in three passes:

1. For each chunk, the hashes of its paragraphs are written (`write_hashes`).
2. For each range of hashes, those that occur in several chunks are written with the chunk that owns them
   (`find_duplicates`).
3. While a chunk is extracted, each of its paragraphs is looked up (`DuplicateParagraphs`).
"""

# P paragraphs

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep.document_set import hash_range, hash_text, rows_in_range
from data_prep.execution.counts import Counts
from megabert.schema import atomic_path

KNOWN = np.dtype([("hash", np.uint64), ("owner", np.uint32)])
"""A paragraph that occurs in several chunks, and the first of them."""
HASHES_A_RANGE = 1 << 22


def write_hashes(documents: Iterator[list[str]], min_characters: int, path: Path) -> tuple[list[Path], Counts]:
    """Write the hashes of a chunk's paragraphs that are long enough, ascending, each once."""
    hashes = {hash_text(p) for paragraphs in documents for p in paragraphs if len(p) >= min_characters}
    with atomic_path(path) as temporary, open(temporary, "wb") as stream:
        np.save(stream, np.sort(np.fromiter(hashes, np.uint64, len(hashes))))
    return [path], {"paragraphs": len(hashes)}


@dataclass(frozen=True)
class RangeTask:
    """One range of hashes of all chunks."""

    chunks: tuple[Path, ...]
    """Files that `write_hashes` wrote, in the order of the chunks."""
    number: int
    """Number of the range."""
    ranges: int
    """Number of equal ranges that all hashes are divided into."""
    path: Path
    """Output."""


def find_duplicates(task: RangeTask) -> tuple[list[Path], Counts]:
    """Write the hashes of a range that occur in several chunks, each with the first of these chunks."""
    low, high = hash_range(task.number, task.ranges)
    parts, owners = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint32)]
    for number, path in enumerate(task.chunks):
        hashes = np.load(path, mmap_mode="r")
        part = np.asarray(hashes[rows_in_range(hashes, low, high)])
        parts.append(part)
        owners.append(np.full(len(part), number, np.uint32))
    # A chunk has each hash once, so one that occurs twice is in several chunks; the first of these is its owner.
    hashes_P, first_P, counts_P = np.unique(np.concatenate(parts), return_index=True, return_counts=True)
    is_repeated = counts_P > 1
    known = np.empty(int(is_repeated.sum()), KNOWN)
    known["hash"], known["owner"] = hashes_P[is_repeated], np.concatenate(owners)[first_P[is_repeated]]
    with atomic_path(task.path) as temporary, open(temporary, "wb") as stream:
        np.save(stream, known)
    return [task.path], {"repeated_paragraphs": len(known)}


def count_ranges(paragraphs: int) -> int:
    """Return in how many ranges the hashes of so many paragraphs are compared."""
    return max(1, -(-paragraphs // HASHES_A_RANGE))


class DuplicateParagraphs:
    """Tells whether a paragraph occurred before, in an earlier chunk or earlier in this one."""

    def __init__(self, folder: Path, chunk: int, min_characters: int) -> None:
        """Map the ranges that `find_duplicates` wrote.

        Args:
            folder: Their folder.
            chunk: Number of the chunk that asks.
            min_characters: Shorter paragraphs are never duplicates.
        """
        self._ranges: list[NDArray] = [np.load(path, mmap_mode="r") for path in sorted(folder.glob("known-*.npy"))]
        self._chunk, self._min_characters = chunk, min_characters
        self._seen: set[int] = set()

    def __call__(self, paragraph: str) -> bool:
        """Return whether to drop a paragraph."""
        if len(paragraph) < self._min_characters:
            return False
        key = hash_text(paragraph)
        if key in self._seen:
            return True
        self._seen.add(key)
        known = self._ranges[(key * len(self._ranges)) >> 64]
        row = int(np.searchsorted(known["hash"], np.uint64(key)))
        return row < len(known) and int(known["hash"][row]) == key and int(known["owner"][row]) != self._chunk
