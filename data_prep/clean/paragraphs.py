"""Exact duplicates of paragraphs over the whole corpus: which occur in several chunks, and which chunk keeps them.

Pass one hashes the paragraphs of each chunk; then ranges of hashes are compared, one unit each, so memory is
bounded; pass two, the extraction, asks for each paragraph.
"""

# P paragraphs

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep.execution.work_units import Counts
from data_prep.text_hashes import hash_range, hash_text, rows_in_range
from megabert.schema import atomic_path

KNOWN = np.dtype([("hash", np.uint64), ("owner", np.uint32)])
HASHES_A_RANGE = 1 << 22


def write_hashes(documents: Iterator[list[str]], min_characters: int, path: Path) -> tuple[list[Path], Counts]:
    """Write the different hashes of the paragraphs of a chunk that are long enough, ascending."""
    found = {hash_text(p) for paragraphs in documents for p in paragraphs if len(p) >= min_characters}
    with atomic_path(path) as temporary, open(temporary, "wb") as stream:
        np.save(stream, np.sort(np.fromiter(found, np.uint64, len(found))))
    return [path], {"paragraphs": len(found)}


@dataclass(frozen=True)
class RangeTask:
    """One range of hashes of all chunks."""

    chunks: tuple[Path, ...]
    number: int
    ranges: int
    path: Path


def find_duplicates(task: RangeTask) -> tuple[list[Path], Counts]:
    """Write the hashes of a range that occur in several chunks, each with the first of these chunks."""
    low, high = hash_range(task.number, task.ranges)
    parts, owners = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint32)]
    for number, path in enumerate(task.chunks):
        hashes = np.load(path, mmap_mode="r")
        part = np.asarray(hashes[rows_in_range(hashes, low, high)])
        parts.append(part)
        owners.append(np.full(len(part), number, np.uint32))
    hashes_P, owners_P = np.concatenate(parts), np.concatenate(owners)
    order = np.argsort(hashes_P, kind="stable")  # stable: the first chunk stays first
    hashes_P, owners_P = hashes_P[order], owners_P[order]
    is_first = np.concatenate([[True], hashes_P[1:] != hashes_P[:-1]])[: len(hashes_P)]
    is_repeated = np.concatenate([~is_first[1:], [False]])[: len(hashes_P)] & is_first
    known = np.empty(int(is_repeated.sum()), KNOWN)
    known["hash"], known["owner"] = hashes_P[is_repeated], owners_P[is_repeated]
    with atomic_path(task.path) as temporary, open(temporary, "wb") as stream:
        np.save(stream, known)
    return [task.path], {"repeated_paragraphs": len(known)}


def count_ranges(paragraphs: int) -> int:
    """Return in how many ranges to compare so many hashes."""
    return max(1, -(-paragraphs // HASHES_A_RANGE))


class DuplicateParagraphs:
    """Tells whether a paragraph occurred before, in an earlier chunk or earlier in this one."""

    def __init__(self, folder: Path, chunk: int, min_characters: int) -> None:
        """Map the ranges that `find_duplicates` wrote."""
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
        place = int(np.searchsorted(known["hash"], np.uint64(key)))
        return place < len(known) and int(known["hash"][place]) == key and int(known["owner"][place]) != self._chunk
