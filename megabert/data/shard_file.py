"""One shard, mapped into memory: its record batches as arrays, and its bytes asked for before they are needed.

A build stores shards uncompressed and in small record batches (`megabert.schema.rows_per_batch`). Then an array is a
view of the file, so that the pages of the file are the only copy a node has, and a row costs one read of its batch.
Shards of earlier versions are compressed in batches of 8,192 rows: they are read by the same calls, and decompressed.
"""

import mmap
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megabert.errors import DataError
from megabert.schema import FlatBatch, ShardEntry, ShardMetadata, read_batch, rows_per_batch

COPY_AGAIN = "Copy the shard again, or delete it and run the same `megabert-data build` command."
_LABEL_COLUMN = 4
"""Index of the smallest column, which tells a batch's rows without decoding the others."""
_BLOCK = np.dtype([("offset", "<i8"), ("metadata", "<i4"), ("padding", "<i4"), ("body", "<i8")])
"""Where a record batch is in the file, as Arrow's footer says it."""
_NEAR = 64 * 1024
"""Bytes between two batches that are rather read as well than asked for apart."""


class UnevenBatchesError(Exception):
    """The record batches of a shard are not of the size that was expected; looking up rows has to begin again."""


class OpenBatch(NamedTuple):
    """A record batch as arrays."""

    columns: FlatBatch
    held_bytes: int
    """Memory that it takes; 0 where the arrays are views of the file."""


class ShardFile:
    """A shard that is open for reading."""

    def __init__(self, path: Path, entry: ShardEntry, metadata: ShardMetadata, schema: pa.Schema | None) -> None:
        """Map the file and check what it says of itself against the manifest.

        Args:
            path: The file.
            entry: What the manifest says of it.
            metadata: What the manifest says of all shards.
            schema: Schema of a shard that was found to agree with the manifest; one that equals it agrees as well.

        Raises:
            DataError: It is no such shard.
        """
        self.path = path
        try:
            with open(path, "rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            # A page that was not asked for would bring 128 KiB around it.
            self._map.madvise(mmap.MADV_RANDOM)
            self._content = pa.py_buffer(self._map)
            # One thread decodes: the ranks of a node share its cores, and the loader has a whole step's time.
            self._reader = pa.ipc.open_file(self._content, options=pa.ipc.IpcReadOptions(use_threads=False))
            self.schema = self._reader.schema
            if schema is None or not self.schema.equals(schema, check_metadata=True):
                self._check_metadata(metadata)
            self.batch_starts = self._starts(metadata, entry.rows)
            """The rows, within the shard, at which its record batches start, and the end."""
        except (pa.ArrowException, OSError, SystemError, ValueError) as error:  # a ValueError: the file is empty
            raise self.damaged(f"it cannot be read as an Arrow file ({str(error).splitlines()[0]})") from error
        if self.batch_starts[-1] != entry.rows:
            raise self.damaged(f"it has {self.batch_starts[-1]} rows, the manifest says {entry.rows}")
        self._extents = _extents(self._map)

    def read(self, number: int) -> OpenBatch:
        """Return a record batch, whose values may make no sense yet but are all there.

        Raises:
            DataError: It is damaged.
            UnevenBatchesError: ``batch_starts`` was a wrong guess, and is right now.
        """
        try:
            batch = read_batch(self._reader, number)
        except DataError as error:
            raise self.damaged(str(error)) from error
        if len(batch) != self.batch_starts[number + 1] - self.batch_starts[number]:
            starts = np.cumsum([0, *self._sizes(range(self._reader.num_record_batches))])
            if starts[-1] != self.batch_starts[-1]:
                raise self.damaged(f"it has {starts[-1]} rows, the manifest says {self.batch_starts[-1]}")
            self.batch_starts = starts
            raise UnevenBatchesError
        columns = _views(batch)
        # Arrow hands out views of what it was given, unless that is compressed.
        distance = batch.column(0).buffers()[1].address - self._content.address
        return OpenBatch(columns, 0 if 0 <= distance < self._content.size else batch.nbytes)

    def prefetch(self, numbers: NDArray[np.int64]) -> None:
        """Ask the system to read record batches, so that it reads many at a time; returns at once.

        Args:
            numbers: Their indices, ascending.
        """
        if self._extents is None:
            return
        starts, stops = (ends[numbers].tolist() for ends in self._extents)
        begin, end = starts[0], stops[0]
        for start, stop in zip(starts, stops, strict=True):
            if start - end > _NEAR:  # neighbours are asked for together
                self._map.madvise(mmap.MADV_WILLNEED, begin, end - begin)
                begin = start
            end = stop
        self._map.madvise(mmap.MADV_WILLNEED, begin, end - begin)

    def damaged(self, what: str, remedy: str = COPY_AGAIN) -> DataError:
        """Return the error for a shard that cannot be used."""
        return DataError(f"{self.path}: {what}. {remedy}")

    def _check_metadata(self, expected: ShardMetadata) -> None:
        metadata = ShardMetadata.from_arrow(self.schema, str(self.path))
        other = [name for name, value in vars(metadata).items() if value != getattr(expected, name)]
        if other:
            raise self.damaged(
                f"its metadata differ from the manifest's: {other[0]} is {getattr(metadata, other[0])!r} and "
                f"{getattr(expected, other[0])!r}",
            )

    def _starts(self, metadata: ShardMetadata, rows: int) -> NDArray[np.int64]:
        """Return where record batches start, if there are as many as a build writes, or the first and the last tell it.

        Looking at a batch costs a read of the disk, so that they are not all looked at.
        """
        count, size = self._reader.num_record_batches, rows_per_batch(metadata.max_seq_length)
        if count == -(-rows // size):
            return np.minimum(np.arange(count + 1) * size, rows)
        sizes = self._sizes([0, count - 1])
        if sizes[0] * (count - 1) + sizes[1] == rows and sizes[0] >= sizes[1] > 0:
            return np.minimum(np.arange(count + 1) * sizes[0], rows)
        return np.cumsum([0, *self._sizes(range(count))])

    def _sizes(self, numbers: Iterable[int]) -> list[int]:
        """Return how many rows record batches have."""
        options = pa.ipc.IpcReadOptions(included_fields=[_LABEL_COLUMN], use_threads=False)
        labels = pa.ipc.open_file(self._content, options=options)
        return [labels.get_batch(number).num_rows for number in numbers]


def _views(batch: pa.RecordBatch) -> FlatBatch:
    """Return a batch that was read whole as arrays, several times as fast as pyarrow makes them column by column."""
    rows, token = len(batch), batch.schema.types[0].value_type.to_pandas_dtype()
    arrays: list[NDArray[np.integer]] = []
    for column, dtype in zip(batch.columns, (token, np.uint16, np.uint16, token, np.uint8), strict=True):
        _, first, *values = column.buffers()
        if not values:
            arrays.append(np.frombuffer(first, dtype, rows))
            continue
        offsets = np.frombuffer(first, np.int32, rows + 1)
        count = int(offsets[-1])
        # numpy refuses a buffer of no bytes.
        arrays += [np.frombuffer(values[1], dtype, count) if count else np.empty(0, dtype), offsets]
    return FlatBatch(*arrays)


def _extents(content: mmap.mmap) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Return where record batches start, at the beginning of a page, and end; None where the footer does not tell.

    The footer is a flatbuffer (Arrow's File.fbs), which pyarrow does not show: a table whose fourth field is a vector
    of blocks. This is for advice to the system only, so that nothing that is read depends on it.
    """
    try:
        end = len(content) - 10  # before the length of the footer, 4 bytes, and the magic string, 6 bytes
        footer = content[end - struct.unpack_from("<i", content, end)[0] : end]
        table = struct.unpack_from("<I", footer, 0)[0]
        fields = table - struct.unpack_from("<i", footer, table)[0]
        vector = table + struct.unpack_from("<H", footer, fields + 4 + 2 * 3)[0]
        vector += struct.unpack_from("<I", footer, vector)[0]
        blocks = np.frombuffer(footer, _BLOCK, struct.unpack_from("<I", footer, vector)[0], vector + 4)
    except (struct.error, ValueError):
        return None
    stops = blocks["offset"] + blocks["metadata"] + blocks["body"]
    starts = blocks["offset"] // mmap.PAGESIZE * mmap.PAGESIZE
    return (starts, stops) if len(blocks) and starts.min() >= 0 and stops.max() <= len(content) else None
