"""Exact duplicates of paragraphs over the whole corpus, for the cleaning rule ``duplicate_paragraphs``.

A paragraph that several documents have stays in one of them, its *owner*: of the documents that all other rules keep,
the one whose text has the smallest hash. So the text alone decides, and neither the order of the input nor the way it
is cut into files and chunks. Documents with the same text have the same hash and count as one.

A set of all paragraphs would not fit into memory, and if each of many ranges of hashes opened each of many chunks, a
corpus of terabytes would take a thousand million opens. So chunks go by groups, about as many as there are chunks in
each:

1. For each chunk, the hashes of its paragraphs are written, each with the one or two smallest hashes of the documents
   there that have it (`write_hashes`).
2. For each group and each block of hashes, the hashes of its chunks are merged (`merge_hashes`).
3. For each range of hashes, a part of a block, the merged files of all groups tell who owns each paragraph, and which
   chunks have documents that lose it (`find_copies`).
4. For each group, the findings of all ranges about its chunks are gathered (`gather_copies`).
5. While a chunk is extracted, its paragraphs are looked up in the file of its group (`ParagraphOwners`).
"""

# P paragraphs

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep.documents.arrow_files import checked_array
from data_prep.documents.document_set import hash_range, hash_text, rows_in_range
from data_prep.execution.records import Counts
from megabert.foundation.files import atomic_path

HASHES_PER_RANGE = 1 << 21
"""Hashes that a unit holds at most, about."""
ROWS_AT_ONCE = 1 << 20
"""Rows that are sorted or gathered together, about."""
MIN_GROUP = 256
"""Chunks of a group, if there are so many. A very large corpus has as many chunks in each group as there are groups."""


@dataclass(frozen=True)
class ParagraphPlan:
    """How the hashes of a corpus are partitioned: by groups of chunks, blocks of hashes, and ranges of these."""

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
        blocks = max(1, -(-paragraphs // (groups * HASHES_PER_RANGE)))
        ranges_a_block = max(1, -(-paragraphs // (blocks * HASHES_PER_RANGE)))
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
    """Write the hashes of a chunk's paragraphs that are long enough, and of the documents that have them: shape (2, P).

    Both ascend. Of a paragraph that many documents of the chunk have, the two smallest hashes are enough: the first may
    own it, and the second tells that some other document of the chunk loses it then.
    """
    rows, waiting = np.zeros((2, 0), np.uint64), []
    for paragraphs in documents:
        own = text_hash(paragraphs)
        waiting += [(hash_text(p), own) for p in paragraphs if len(p) >= min_characters]
        if len(waiting) >= ROWS_AT_ONCE:
            rows, waiting = _two_smallest(np.hstack([rows, np.array(waiting, np.uint64).T])), []
    rows = _two_smallest(np.hstack([rows, np.array(waiting, np.uint64).reshape(-1, 2).T]))
    with array_file(path, rows.shape) as append:
        append(rows)
    return [path], {"paragraphs": rows.shape[1]}


def text_hash(paragraphs: list[str]) -> int:
    """Return the hash of a document's text."""
    return hash_text("\n".join(paragraphs))


def _two_smallest(rows: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the different rows in ascending order, of each paragraph the first two."""
    rows = rows[:, np.lexsort(rows[::-1])]
    is_new = np.ones(rows.shape[1], bool)
    is_new[1:] = (rows[:, 1:] != rows[:, :-1]).any(axis=0)
    rows = rows[:, is_new]
    is_third = np.zeros(rows.shape[1], bool)
    is_third[2:] = rows[0, 2:] == rows[0, :-2]
    return rows[:, ~is_third]


def merge_hashes(task: ParagraphTask) -> tuple[list[Path], Counts]:
    """Write the rows of a block that the chunks of a group have, ascending, each with its chunk: shape (3, P)."""
    low, high = hash_range(task.number, task.parts)

    def parts() -> Iterator[NDArray[np.uint64]]:
        for chunk, path in zip(task.numbers, task.sources, strict=True):
            rows = checked_array(path, np.uint64, (2, None))
            part = rows[:, rows_in_range(rows[0], low, high)]
            yield np.vstack([part, np.full(part.shape[1], chunk, np.uint64)])

    rows = joined(parts())
    with array_file(task.path, rows.shape) as append:
        append(rows[:, np.argsort(rows[0], kind="stable")])
    return [task.path], {}


def find_copies(task: ParagraphTask) -> tuple[list[Path], Counts]:
    """Write the paragraphs of a range that documents lose: hash, owner and chunk, by chunk and hash, shape (3, P)."""
    low, high = hash_range(task.number, task.parts)

    def parts() -> Iterator[NDArray[np.uint64]]:
        for path in task.sources:
            merged = checked_array(path, np.uint64, (3, None))
            yield np.array(merged[:, rows_in_range(merged[0], low, high)])

    rows = joined(parts())
    rows = rows[:, np.lexsort(rows[1::-1])]
    # The first document of each paragraph owns it; chunks with another one are told so, once.
    is_first = np.ones(rows.shape[1], bool)
    is_first[1:] = rows[0, 1:] != rows[0, :-1]
    owners = rows[1, is_first][np.cumsum(is_first) - 1]
    is_lost = rows[1] != owners
    rows = np.stack([rows[0], owners, rows[2]])[:, is_lost]
    rows = rows[:, np.lexsort(rows[[0, 2]])]
    is_told = np.zeros(rows.shape[1], bool)
    is_told[1:] = (rows[:, 1:] == rows[:, :-1]).all(axis=0)
    rows = rows[:, ~is_told]
    with array_file(task.path, rows.shape) as append:
        append(rows)
    return [task.path], {"repeated_paragraphs": rows.shape[1]}


def gather_copies(task: ParagraphTask) -> tuple[list[Path], Counts]:
    """Write what all ranges have of the chunks of a group, by chunk and hash: shape (3, P).

    A corpus that repeats itself loses every other paragraph. So a few chunks are gathered at a time, as many as have
    about `ROWS_AT_ONCE` rows together.
    """
    first, end = task.number, task.number + task.parts
    # Ranges of hashes follow each other, so that their rows, joined, ascend in each chunk.
    borders = np.arange(first, end + 1, dtype=np.uint64)
    rows_C = np.zeros(task.parts, np.int64)
    for path in task.sources:
        rows_C += np.diff(np.searchsorted(checked_array(path, np.uint64, (3, None))[2], borders))
    stops = np.searchsorted(np.cumsum(rows_C), np.arange(0, rows_C.sum(), ROWS_AT_ONCE), side="right") + first
    with array_file(task.path, (3, int(rows_C.sum()))) as append:
        for start, stop in pairwise(sorted({first, *stops.tolist(), end})):
            parts = (checked_array(path, np.uint64, (3, None)) for path in task.sources)
            rows = joined(np.array(part[:, rows_of(part[2], start, stop)]) for part in parts)
            append(rows[:, np.argsort(rows[2], kind="stable")])
    return [task.path], {}


def rows_of(chunks_P: NDArray[np.uint64], first: int, end: int) -> slice:
    """Return the rows of ascending chunks that are from ``first`` to below ``end``."""
    return slice(*np.searchsorted(chunks_P, np.array([first, end], np.uint64)).tolist())


def joined(parts: Iterable[NDArray[np.uint64]], height: int = 3) -> NDArray[np.uint64]:
    """Return arrays of so many rows side by side; of none, one without a column."""
    return np.concatenate([np.zeros((height, 0), np.uint64), *parts], axis=1)


@contextmanager
def array_file(path: Path, shape: tuple[int, int]) -> Iterator[Callable[[NDArray[np.uint64]], None]]:
    """Write a file of numpy whole or not at all; yield what appends columns to its array."""
    with atomic_path(path) as temporary, open(temporary, "wb") as stream:
        description = {"descr": "<u8", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(stream, description)
        begin, filled = stream.tell(), 0

        def append(columns: NDArray[np.uint64]) -> None:
            nonlocal filled
            for number, row in enumerate(columns):
                stream.seek(begin + 8 * (number * shape[1] + filled))
                stream.write(np.ascontiguousarray(row).data)
            filled += columns.shape[1]

        yield append


class ParagraphOwners:
    """Tells which paragraphs a document of a chunk keeps."""

    def __init__(self, path: Path, chunk: int, min_characters: int) -> None:
        """Read the owners of the paragraphs of a chunk.

        Args:
            path: The file that `gather_copies` wrote for the chunk's group.
            chunk: Number of the chunk.
            min_characters: Shorter paragraphs may repeat.
        """
        copies = checked_array(path, np.uint64, (3, None))
        self._min_characters = min_characters
        self._lost, self._owners = np.array(copies[:2, rows_of(copies[2], chunk, chunk + 1)])

    def kept(self, paragraphs: list[str]) -> list[str]:
        """Return the paragraphs of a document that it keeps: short ones, and its own, each once."""
        own, seen = text_hash(paragraphs), set()
        kept = []
        for paragraph in paragraphs:
            if len(paragraph) >= self._min_characters:
                key = hash_text(paragraph)
                if key in seen or self._owner(key, own) != own:
                    continue
                seen.add(key)
            kept.append(paragraph)
        return kept

    def _owner(self, paragraph: int, own: int) -> int:
        """Return the hash of the document that owns a paragraph: ``own`` if no other document of any chunk has it."""
        place = int(np.searchsorted(self._lost, np.uint64(paragraph)))
        is_known = place < len(self._lost) and int(self._lost[place]) == paragraph
        return int(self._owners[place]) if is_known else own
