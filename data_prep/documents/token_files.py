"""Files of tokenized documents on their way from the chunks to the buckets, read by ranges of hashes.

A file holds the documents of one range of hashes, a record batch for each of equal parts of it, the *cells*; within a
batch documents are sorted by split and hash. So the documents of any range are one slice of one batch or of a few, and
which batches these are follows from the range alone.
"""

import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_prep.documents.arrow_files import offsets_of, unreadable
from data_prep.documents.document_set import TokenizedDocuments, document_schema, rows_in_range
from megabert.foundation.errors import DataError
from megabert.foundation.files import open_to_read
from megabert.tokens.shards.columns import flat_list
from megabert.tokens.shards.shard_file import read_batches

HASHES = 1 << 64


def part_of(value: int, total: int, parts: int) -> int:
    """Return which of equal parts of a range holds a value, where part ``p`` begins at ``p * total // parts``."""
    return ((value + 1) * parts - 1) // total


@dataclass(frozen=True)
class TokenFile:
    """A file of tokenized documents."""

    path: Path
    first_cell: int = 0
    cells: int = 1
    """Number of cells that the file holds, each a record batch. A file without documents may have no batch."""
    grid: int = 1
    """Number of cells that all hashes are divided into."""

    def batches(self, low: int, high: int) -> range:
        """Return the batches that may hold hashes from ``low`` to below ``high``."""
        first, last = (part_of(value, HASHES, self.grid) - self.first_cell for value in (low, high - 1))
        return range(max(first, 0), min(last + 1, self.cells))


@dataclass(frozen=True)
class TokenFiles:
    """All files of one step: the hashes are divided into blocks of cells, each with the same number of files."""

    folder: Path
    name: str
    """Name of a file, with places for its block and its number."""
    files: int
    """Files of each block."""
    blocks: int = 1
    grid: int = 1
    """Number of cells that all hashes are divided into."""

    def __getitem__(self, place: tuple[int, int]) -> TokenFile:
        """Return a file of a block."""
        block, number = place
        first, end = (border * self.grid // self.blocks for border in (block, block + 1))
        path = self.folder / self.name.format(block=block, number=number)
        return TokenFile(path, first, end - first, self.grid)

    def overlapping(self, low: int, high: int, numbers: range | None = None) -> tuple[TokenFile, ...]:
        """Return the files that may hold hashes from ``low`` to below ``high``, block by block.

        Args:
            low: First hash.
            high: The hash after the last one.
            numbers: Which files of each block are meant; all by default.
        """
        first, last = (part_of(part_of(hash_, HASHES, self.grid), self.grid, self.blocks) for hash_ in (low, high - 1))
        return tuple(self[block, n] for block in range(first, last + 1) for n in numbers or range(self.files))


class TokenReader:
    """Some open files of tokenized documents, read range by range.

    A mapped page counts as memory of the process, and the files of a unit are far larger than a worker's share. So a
    range is copied when it is read, and the pages are given back after each range.
    """

    def __init__(self, files: Iterable[TokenFile], vocab_size: int) -> None:
        """Open the files; each is closed when nothing refers to its pages any more.

        Args:
            files: The files.
            vocab_size: Number of pieces, which bounds ids.
        """
        self._opened = [_OpenFile(file, vocab_size) for file in files]

    def read(self, splits: Iterable[int], low: int, high: int) -> TokenizedDocuments:
        """Return the documents of some splits whose hashes are from ``low`` to below ``high``, perhaps none.

        They are ordered by split, then by file, then by hash.
        """
        parts = [part for split in splits for file in self._opened for part in file.read(split, low, high)]

        def join(dtype: type[np.integer], arrays: Iterable[NDArray]) -> NDArray:
            return np.concatenate([np.zeros(0, dtype), *arrays])  # np.concatenate refuses an empty list

        return TokenizedDocuments(
            join(np.uint64, (part.hashes_D for part in parts)),
            join(np.uint8, (part.splits_D for part in parts)),
            join(np.uint16, (part.sources_D for part in parts)),
            join(np.uint16, (part.ids_T for part in parts)),
            join(np.uint32, (part.sentence_lengths_S for part in parts)),
            offsets_of(join(np.int64, (np.diff(part.sentence_offsets) for part in parts))),
        )


class _OpenFile:
    """A mapped file, and the batch of it that was read last."""

    def __init__(self, file: TokenFile, vocab_size: int) -> None:
        self._file, self._vocab_size = file, vocab_size
        try:
            with open_to_read(file.path) as stream:
                self._pages = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            self._reader = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(self._pages)))
        except (OSError, ValueError, pa.ArrowException) as error:  # an empty file cannot be mapped
            raise unreadable(file.path, str(error)) from error
        if self._reader.schema != document_schema(vocab_size):
            raise unreadable(file.path, "its columns are others")
        self._last: tuple[int, TokenizedDocuments, NDArray[np.int64]] | None = None

    def read(self, split: int, low: int, high: int) -> Iterator[TokenizedDocuments]:
        """Yield copies of the documents of a range, and then give the pages of the file back."""
        for index in self._file.batches(low, high):
            if index >= self._reader.num_record_batches:
                break
            documents, token_offsets = self._open(index)
            # The documents are sorted by split, and within a split by hash: two searches give the slice.
            first, end = np.searchsorted(documents.splits_D, [split, split + 1])
            rows = rows_in_range(documents.hashes_D[first:end], low, high)
            if rows.start < rows.stop:
                yield self._copy(documents, token_offsets, slice(first + rows.start, first + rows.stop))
        if hasattr(mmap, "MADV_DONTNEED"):
            self._pages.madvise(mmap.MADV_DONTNEED)

    def _open(self, index: int) -> tuple[TokenizedDocuments, NDArray[np.int64]]:
        """Return the documents of a batch as views of the file, and where the tokens of each begin."""
        if self._last is None or self._last[0] != index:
            try:  # a unit reads only the rows that it copies, so their offsets are checked with the copy
                batch = read_batches(self._reader, [index], is_full=False)
            except DataError as error:
                raise unreadable(self._file.path, str(error)) from error
            self._last = index, TokenizedDocuments.of(batch), flat_list(batch["input_ids"])[1]
        return self._last[1:]

    def _copy(self, documents: TokenizedDocuments, token_offsets: NDArray[np.int64], rows: slice) -> TokenizedDocuments:
        """Return a checked copy of consecutive documents."""
        sentences, tokens = (
            offsets[rows.start : rows.stop + 1] for offsets in (documents.sentence_offsets, token_offsets)
        )
        copy = TokenizedDocuments(
            documents.hashes_D[rows].copy(),
            documents.splits_D[rows].copy(),
            documents.sources_D[rows].copy(),
            documents.ids_T[max(tokens[0], 0) : max(tokens[-1], 0)].copy(),
            documents.sentence_lengths_S[max(sentences[0], 0) : max(sentences[-1], 0)].copy(),
            sentences - sentences[0],
        )
        return copy.require_sound(self._file.path, self._vocab_size, np.diff(tokens))
