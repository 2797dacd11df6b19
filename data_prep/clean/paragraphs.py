"""Exact duplicates of paragraphs over the whole corpus, for the cleaning rule ``duplicate_paragraphs``.

Of a paragraph that occurs in several chunks, the first chunk keeps the first copy. A set of all paragraphs would not
fit into memory, and if each of many ranges of hashes opened each of many chunks, a corpus of terabytes would take a
thousand million opens. So chunks go by groups, about as many as there are chunks in each:

1. For each chunk, the hashes of its paragraphs are written (`write_hashes`).
2. For each group and each block of hashes, those of its chunks are merged (`merge_hashes`).
3. For each range of hashes, a part of a block, the merged files of all groups tell which chunks have a paragraph that
   an earlier chunk has as well (`find_copies`).
4. For each group, what was found of its chunks in all ranges is gathered (`gather_copies`).
5. While a chunk is extracted, its paragraphs are looked up in the file of its group (`DuplicateParagraphs`).
"""

# P paragraphs

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep.document_set import hash_range, hash_text, rows_in_range
from data_prep.execution.records import Counts
from megabert.files import atomic_path

HASHES_A_RANGE = 1 << 21
"""Hashes that a unit holds at most, about."""
MIN_GROUP = 256
"""Chunks of a group where there are so many; those of a very large corpus are as many as there are groups."""


@dataclass(frozen=True)
class ParagraphPlan:
    """How the hashes of a corpus are parted: by groups of chunks, blocks of hashes, and ranges of these."""

    chunks: int
    chunks_a_group: int
    blocks: int
    ranges: int
    """Ranges of all hashes; each block has as many."""

    @classmethod
    def of(cls, chunks: int, paragraphs: int) -> "ParagraphPlan":
        """Plan for so many chunks that together have so many paragraphs."""
        chunks_a_group = max(MIN_GROUP, math.isqrt(chunks) + 1)
        groups = max(1, -(-chunks // chunks_a_group))
        blocks = max(1, -(-paragraphs // (groups * HASHES_A_RANGE)))
        ranges_a_block = max(1, -(-paragraphs // (blocks * HASHES_A_RANGE)))
        return cls(chunks, chunks_a_group, blocks, blocks * ranges_a_block)

    @property
    def groups(self) -> int:
        """Number of groups of chunks."""
        return max(1, -(-self.chunks // self.chunks_a_group))

    def chunks_of(self, group: int) -> range:
        """Return the chunks of a group."""
        return range(group * self.chunks_a_group, min((group + 1) * self.chunks_a_group, self.chunks))

    def block_of(self, number: int) -> int:
        """Return the block that a range is a part of."""
        return number * self.blocks // self.ranges


@dataclass(frozen=True)
class ParagraphTask:
    """Files to read, which part of them, and the file to write."""

    folder: Path
    source: str
    """Name of a file to read, with a place for its number."""
    numbers: range
    number: int
    """Number of the part: of a block or a range of hashes, or the first chunk that is meant."""
    parts: int
    """Equal parts that all hashes are divided into, or the number of chunks that are meant."""
    path: Path

    @property
    def sources(self) -> list[Path]:
        """Files to read; listed by the worker, for there are many in all."""
        return [self.folder / self.source.format(number) for number in self.numbers]


def write_hashes(documents: Iterator[list[str]], min_characters: int, path: Path) -> tuple[list[Path], Counts]:
    """Write the hashes of a chunk's paragraphs that are long enough, ascending, each once."""
    hashes = {hash_text(p) for paragraphs in documents for p in paragraphs if len(p) >= min_characters}
    _save(path, np.sort(np.fromiter(hashes, np.uint64, len(hashes))))
    return [path], {"paragraphs": len(hashes)}


def merge_hashes(task: ParagraphTask) -> tuple[list[Path], Counts]:
    """Write the hashes of a block that the chunks of a group have, ascending, each with its chunk: shape (2, P)."""
    low, high = hash_range(task.number, task.parts)

    def parts() -> Iterator[NDArray[np.uint64]]:
        for chunk, path in zip(task.numbers, task.sources, strict=True):
            hashes = np.load(path, mmap_mode="r")
            part = hashes[rows_in_range(hashes, low, high)]
            yield np.stack([part, np.full(len(part), chunk, np.uint64)])

    hashes_P, chunks_P = _joined(parts())
    order = np.argsort(hashes_P, kind="stable")  # equal ones stay in the order of the chunks
    _save(task.path, np.stack([hashes_P[order], chunks_P[order]]))
    return [task.path], {}


def find_copies(task: ParagraphTask) -> tuple[list[Path], Counts]:
    """Write the hashes of a range that an earlier chunk has as well, each with its chunk, by chunks: shape (2, P)."""
    low, high = hash_range(task.number, task.parts)

    def parts() -> Iterator[NDArray[np.uint64]]:
        for path in task.sources:
            merged = np.load(path, mmap_mode="r")
            yield np.array(merged[:, rows_in_range(merged[0], low, high)])

    hashes_P, chunks_P = _joined(parts())
    order = np.argsort(hashes_P, kind="stable")
    # A chunk has each hash once, and the first of several chunks keeps the paragraph.
    copies = order[1:][hashes_P[order[1:]] == hashes_P[order[:-1]]]
    copies = copies[np.argsort(chunks_P[copies], kind="stable")]
    _save(task.path, np.stack([hashes_P[copies], chunks_P[copies]]))
    return [task.path], {"repeated_paragraphs": len(copies)}


def gather_copies(task: ParagraphTask) -> tuple[list[Path], Counts]:
    """Write what all ranges have of the chunks of a group, by chunks: shape (2, P)."""

    def parts() -> Iterator[NDArray[np.uint64]]:
        for path in task.sources:
            found = np.load(path, mmap_mode="r")
            yield np.array(found[:, _rows_of(found[1], task.number, task.number + task.parts)])

    hashes_P, chunks_P = _joined(parts())
    order = np.argsort(chunks_P, kind="stable")
    _save(task.path, np.stack([hashes_P[order], chunks_P[order]]))
    return [task.path], {}


def _rows_of(chunks_P: NDArray[np.uint64], first: int, end: int) -> slice:
    """Return the rows of ascending chunks that are from ``first`` to below ``end``."""
    return slice(*np.searchsorted(chunks_P, np.array([first, end], np.uint64)).tolist())


def _joined(parts: Iterable[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    return np.concatenate([np.zeros((2, 0), np.uint64), *parts], axis=1)


def _save(path: Path, values: NDArray[np.uint64]) -> None:
    with atomic_path(path) as temporary, open(temporary, "xb") as stream:
        np.save(stream, values)


class DuplicateParagraphs:
    """Tells whether a paragraph occurred before, in an earlier chunk or earlier in this one."""

    def __init__(self, path: Path, chunk: int, min_characters: int) -> None:
        """Read what is known of a chunk.

        Args:
            path: What `gather_copies` wrote of the chunk's group.
            chunk: Number of the chunk that asks.
            min_characters: Shorter paragraphs are never duplicates.
        """
        copies = np.load(path, mmap_mode="r")
        self._min_characters = min_characters
        self._seen: set[int] = set(copies[0, _rows_of(copies[1], chunk, chunk + 1)].tolist())

    def __call__(self, paragraph: str) -> bool:
        """Return whether to drop a paragraph."""
        if len(paragraph) < self._min_characters:
            return False
        key = hash_text(paragraph)
        is_known = key in self._seen
        self._seen.add(key)
        return is_known
