"""Hashes of a corpus that do not fit into memory, merged by groups of chunks and ranges of hashes.

If each of many ranges of hashes opened each of many chunks, a corpus of terabytes would take a thousand million opens.
So chunks go by groups, each of about the square root of their number, and hashes by blocks, which consist of ranges:

1. Each chunk's hashes are written, ascending.
2. For each group and each block of hashes, the hashes of its chunks are merged.
3. For each range of hashes, a part of a block, the merged files of all groups are read.
4. For each group, the findings of all ranges about its chunks are gathered, where the reading of a chunk finds them.

The rules ``duplicate_paragraphs`` (`data_prep.clean.paragraph_copies`) and ``near_duplicates``
(`data_prep.clean.near_duplicates`) both go this way. All rows are columns of arrays of numpy, 64 bits each.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep.documents.arrow_files import checked_array
from data_prep.documents.document_set import hash_range, hash_text, rows_in_range
from megabert.foundation.files import atomic_path

HASHES_PER_RANGE = 1 << 21
"""Hashes that a unit holds at most, about."""
ROWS_AT_ONCE = 1 << 20
"""Rows that are sorted or gathered together, about."""
MIN_GROUP = 256
"""Least chunks in a group, if the corpus has them. In a very large one, groups and chunks per group are even."""
CHUNK_NAME = "{:06d}.npy"
"""Name of the file of a chunk's hashes."""
Rows = NDArray[np.uint64]


@dataclass(frozen=True)
class HashPlan:
    """How the hashes of a corpus are partitioned: by groups of chunks, blocks of hashes, and ranges of these."""

    chunks: int
    chunks_a_group: int
    blocks: int
    ranges: int
    """Ranges of all hashes; each block has the same number of them."""

    @classmethod
    def of(cls, chunks: int, hashes: int) -> "HashPlan":
        """Plan for a number of chunks, and the number of hashes that they have together."""
        chunks_a_group = max(MIN_GROUP, math.isqrt(chunks) + 1)
        groups = max(1, -(-chunks // chunks_a_group))
        blocks = max(1, -(-hashes // (groups * HASHES_PER_RANGE)))
        ranges_a_block = max(1, -(-hashes // (blocks * HASHES_PER_RANGE)))
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
class RangeTask:
    """Files to read, which part of them, and the file to write."""

    sources: tuple[tuple[str, int], ...]
    """Names of files in ``folder`` with a place for a number, and how many there are; listed by the worker."""
    folder: Path
    number: int
    """Number of the part: of a range or block of hashes, or the first chunk that is meant."""
    parts: int
    """Equal parts that all hashes are divided into, or the number of chunks that are meant."""
    path: Path
    first: int = 0
    """Number of the first file of each name."""

    def paths(self, name: int = 0) -> list[Path]:
        """Return the files of a name."""
        source, count = self.sources[name]
        return [self.folder / source.format(number) for number in range(self.first, self.first + count)]

    def rows(self, name: int = 0, height: int = 2) -> Iterator[Rows]:
        """Yield the rows of the range in each file of a name, shape (height, n), in ascending order of the first."""
        low, high = hash_range(self.number, self.parts)
        for path in self.paths(name):
            rows = read_rows(path, height)
            yield rows[:, rows_in_range(rows[0], low, high)]


def text_hash(paragraphs: list[str]) -> int:
    """Return the hash of a document's text."""
    return hash_text("\n".join(paragraphs))


def read_rows(path: Path, height: int = 2) -> Rows:
    """Return rows as they were written, mapped: shape (height, n)."""
    return np.asarray(checked_array(path, np.uint64, (height, None)))


def write_rows(path: Path, rows: Rows) -> Path:
    """Write rows whole or not at all, and return their path."""
    with array_file(path, rows.shape) as append:
        append(rows)
    return path


@contextmanager
def array_file(path: Path, shape: tuple[int, ...]) -> Iterator[Callable[[NDArray[np.uint64]], None]]:
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


def rows_of(chunks_P: NDArray[np.uint64], first: int, end: int) -> slice:
    """Return the rows of ascending chunks that are from ``first`` to below ``end``."""
    return slice(*np.searchsorted(chunks_P, np.array([first, end], np.uint64)).tolist())


def joined(parts: Iterable[NDArray[np.uint64]], height: int = 3) -> NDArray[np.uint64]:
    """Return arrays of ``height`` rows side by side; an array without a column if there is none."""
    return np.concatenate([np.zeros((height, 0), np.uint64), *parts], axis=1)


def distinct(rows: Rows) -> Rows:
    """Return the different columns of rows, in ascending order."""
    rows = rows[:, np.lexsort(rows[::-1])]
    is_new = np.ones(rows.shape[1], bool)
    is_new[1:] = (rows[:, 1:] != rows[:, :-1]).any(axis=0)
    return rows[:, is_new]


def first_of_each(rows: Rows) -> tuple[NDArray[np.bool_], Rows]:
    """Return whether each row, sorted by hash, is the first of its hash, and the second number of its first row."""
    is_first = np.ones(rows.shape[1], bool)
    is_first[1:] = rows[0, 1:] != rows[0, :-1]
    return is_first, rows[1, is_first][np.cumsum(is_first) - 1]
