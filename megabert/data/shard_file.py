"""One shard, mapped into memory: its record batches as arrays, and its bytes asked for before they are needed.

A build stores shards uncompressed and in small record batches (`megabert.schema.rows_per_batch`). Then an array is a
view of the file, so that the pages of the file are the only copy a node has, and a row costs one read of its batch.
Shards of earlier versions are compressed in batches of 8,192 rows: they are read by the same calls, and decompressed.
"""

import mmap
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megabert.errors import DataError
from megabert.schema import FlatBatch, ShardEntry, ShardMetadata, read_batch

COPY_AGAIN = "Copy the shard again, or delete it and run the same `megabert-data build` command."
_LABEL_COLUMN = 4
"""Index of the smallest column, which tells a batch's rows without decoding the others."""
_BLOCK = np.dtype([("offset", "<i8"), ("metadata", "<i4"), ("padding", "<i4"), ("body", "<i8")])
"""Where a record batch is in the file, as Arrow's footer says it."""
_NEAR = 64 * 1024
"""Bytes between two batches that are rather read as well than asked for apart."""


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
            self.batch_starts = self._starts(entry.rows)
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
        """
        try:
            batch = read_batch(self._reader, number)
        except DataError as error:
            raise self.damaged(str(error)) from error
        rows = self.batch_starts[number + 1] - self.batch_starts[number]
        if len(batch) != rows:
            raise self.damaged(f"record batch {number} has {len(batch)} rows, {rows} were expected")
        ids, b_start, positions, originals, label = batch.columns
        lists = [_list_arrays(column) for column in (ids, positions, originals)]
        columns = FlatBatch(*lists[0], np.asarray(b_start), *lists[1], *lists[2], np.asarray(label))
        # Arrow hands out views of what it was given, unless that is compressed.
        distance = columns.offsets.ctypes.data - self._content.address
        return OpenBatch(columns, 0 if 0 <= distance < self._content.size else batch.nbytes)

    def prefetch(self, numbers: NDArray[np.int64]) -> None:
        """Ask the system to read record batches, so that it reads many at a time; returns at once.

        Args:
            numbers: Their indices, ascending.
        """
        if self._extents is None:
            return
        starts, stops = self._extents[0][numbers], self._extents[1][numbers]
        # Neighbours are asked for together.
        cuts = np.flatnonzero(starts[1:] - stops[:-1] > _NEAR)
        for start, stop in zip(starts[np.r_[0, cuts + 1]].tolist(), stops[np.r_[cuts, -1]].tolist(), strict=True):
            self._map.madvise(mmap.MADV_WILLNEED, start, stop - start)

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

    def _starts(self, rows: int) -> NDArray[np.int64]:
        """Return where record batches start. The first and the last are looked at; all are, where these do not tell."""
        count = self._reader.num_record_batches
        labels = pa.ipc.open_file(self._content, options=pa.ipc.IpcReadOptions(included_fields=[_LABEL_COLUMN]))
        sizes = [labels.get_batch(number).num_rows for number in sorted({0, count - 1})] if count else [0]
        if sizes[0] * (count - 1) + sizes[-1] == rows and sizes[0] >= sizes[-1] > 0:
            return np.minimum(np.arange(count + 1) * sizes[0], rows)
        return np.cumsum([0, *(labels.get_batch(number).num_rows for number in range(count))])


def _list_arrays(column: pa.ListArray) -> tuple[NDArray[np.integer], NDArray[np.int32]]:
    """Return the values and the offsets of a list column that is no slice, as views."""
    return np.asarray(column.values), np.asarray(column.offsets)


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
