"""One shard, mapped into memory: its record batches as arrays, and its bytes asked for before they are needed.

A build stores shards uncompressed and in small record batches (`megabert.shards.rows_per_batch`). Then instances are
copied straight out of the file (`copy_loops`), so that its pages are the only copy a node has, and a row costs one
read of its batch. Shards of earlier versions are compressed in batches of 8,192 rows: pyarrow opens these, and whatever
else is not laid out as a build does it.
"""

import errno
import math
import mmap
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megabert.errors import DataError
from megabert.files import check_regular
from megabert.shards import FlatBatch, ShardEntry, ShardMetadata, read_batch, rows_per_batch, token_type

COPY_AGAIN = "Copy the shard again, or delete it and run the same `megabert-data build` command."
_LABEL_COLUMN = 4
"""Index of the smallest column, which tells a batch's rows without decoding the others."""
_TAIL_BYTES = 16 * 1024
"""The end of a file that is read first: the footer of a shard is about 6 KiB."""
_MAGIC = b"ARROW1"


class UnevenBatchesError(Exception):
    """The record batches of a shard are not of the size that was expected; looking up rows has to begin again."""


class OpenBatch(NamedTuple):
    """A record batch as arrays."""

    columns: FlatBatch
    held_bytes: int
    """Memory that it takes; 0 where the arrays are views of the file."""


class ShardFile:
    """A shard that is open for reading."""

    def __init__(
        self,
        path: Path,
        entry: ShardEntry,
        metadata: ShardMetadata,
        schema: bytes | None,
        batch_starts: NDArray[np.int64] | None = None,
    ) -> None:
        """Map the file and check what it says of itself against the manifest.

        Args:
            path: The file.
            entry: What the manifest says of it.
            metadata: What the manifest says of all shards.
            schema: The ``schema`` of a shard that was found to agree with the manifest; one that equals it agrees, too.
            batch_starts: The ``batch_starts`` that it was found to have before.

        Raises:
            DataError: It is no such shard.
        """
        from megabert.shards.copy_loops import BLOCK, Layout, MappedShard

        self.path = path
        with self._naming_damage():
            self._map, footer = _map(path)
            # A page that was not asked for would bring 128 KiB around it.
            self._map.madvise(mmap.MADV_RANDOM)
            blocks, self.schema = _blocks(footer, BLOCK)
            """The schema as bytes; None where the footer is not laid out as usual."""
            if self.schema is None or self.schema != schema:
                self._check_metadata(metadata)
            self.batch_starts = (
                self._starts(metadata, entry.rows, len(blocks)) if batch_starts is None else batch_starts
            )
            """The rows, within the shard, at which its record batches start, and the end."""
        if self.batch_starts[-1] != entry.rows:
            raise self.damaged(f"it has {self.batch_starts[-1]} rows, the manifest says {entry.rows}")
        types = np.uint8, np.uint16, np.int32, np.int64, np.dtype(token_type(metadata.vocab_size).to_pandas_dtype())
        views = (np.frombuffer(self._map, kind, len(self._map) // np.dtype(kind).itemsize) for kind in types)
        self.mapped = MappedShard._make([*views, blocks])
        """The file as arrays, for the loops that find and copy instances."""
        token_bytes = self.mapped.tokens.itemsize
        rows = rows_per_batch(metadata.max_seq_length)
        # Four standard deviations of where the middle of a batch is, if lengths vary by a quarter of the longest.
        slack = metadata.max_seq_length * token_bytes * math.isqrt(rows) // 2
        self.layout = Layout(blocks, self.batch_starts, rows, entry.tokens * token_bytes, slack)
        """Where in the file instances are expected."""

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
            self.batch_starts, self.layout = starts, self.layout._replace(starts=starts)
            raise UnevenBatchesError
        columns = _views(batch)
        # Arrow hands out views of what it was given, unless that is compressed.
        distance = batch.column(0).buffers()[1].address - self._content.address
        return OpenBatch(columns, 0 if 0 <= distance < self._content.size else batch.nbytes)

    def prefetch(self, parts: NDArray[np.int64]) -> None:
        """Ask the system to read parts of the file, so that it reads many at a time; returns at once.

        Args:
            parts: Where they begin, at the beginning of a page, and end.
        """
        for begin, end in parts.tolist():
            if 0 <= begin < end <= len(self._map):
                self._map.madvise(mmap.MADV_WILLNEED, begin, end - begin)

    def damaged(self, what: str, remedy: str = COPY_AGAIN) -> DataError:
        """Return the error for a shard that cannot be used."""
        return DataError(f"{self.path}: {what}. {remedy}")

    @cached_property
    def _content(self) -> pa.Buffer:
        return pa.py_buffer(self._map)

    @cached_property
    def _reader(self) -> pa.RecordBatchFileReader:
        """The file for pyarrow, which takes several times as long to open it as reading a row takes."""
        # One thread decodes: the ranks of a node share its cores, and the loader has a whole step's time.
        with self._naming_damage():
            return pa.ipc.open_file(self._content, options=pa.ipc.IpcReadOptions(use_threads=False))

    @contextmanager
    def _naming_damage(self) -> Iterator[None]:
        """Turn what opening a damaged file raises into an error that names it."""
        try:
            yield
        except (pa.ArrowException, OSError, SystemError, ValueError) as error:  # a ValueError: the file is empty
            if isinstance(error, OSError) and error.errno == errno.EMFILE:  # nothing is wrong with the file
                raise
            raise self.damaged(f"it cannot be read as an Arrow file ({str(error).splitlines()[0]})") from error

    def _check_metadata(self, expected: ShardMetadata) -> None:
        metadata = ShardMetadata.from_arrow(self._reader.schema, str(self.path))
        other = [name for name, value in vars(metadata).items() if value != getattr(expected, name)]
        if other:
            raise self.damaged(
                f"its metadata differ from the manifest's: {other[0]} is {getattr(metadata, other[0])!r} and "
                f"{getattr(expected, other[0])!r}",
            )

    def _starts(self, metadata: ShardMetadata, rows: int, count: int) -> NDArray[np.int64]:
        """Return where record batches start, if there are as many as a build writes, or the first and the last tell it.

        Looking at a batch costs a read of the disk, so that they are not all looked at.
        """
        size = rows_per_batch(metadata.max_seq_length)
        if count == -(-rows // size):
            return np.minimum(np.arange(count + 1) * size, rows)
        count = self._reader.num_record_batches
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


def _map(path: Path) -> tuple[mmap.mmap, bytes]:
    """Map a file into memory, and return its footer as well; b"" where there is none."""
    check_regular(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        # The end of the file in one read, where the mapping would ask for it page by page.
        tail = os.pread(descriptor, _TAIL_BYTES, max(0, len(content) - _TAIL_BYTES))
        end = len(tail) - 4 - len(_MAGIC)
        if end < 0 or tail[end + 4 :] != _MAGIC:
            return content, b""
        size = struct.unpack_from("<i", tail, end)[0]
        if size > end:
            return content, os.pread(descriptor, size, max(0, len(content) - 4 - len(_MAGIC) - size))
        return content, tail[end - size : end]
    finally:
        os.close(descriptor)


def _blocks(footer: bytes, block: np.dtype) -> tuple[NDArray[np.void], bytes | None]:
    """Return where record batches are, and the schema as bytes; no batches and None if the footer is odd.

    The footer is a flatbuffer (Arrow's File.fbs), which pyarrow does not show: a table whose second field is the
    schema, and whose fourth is a vector of blocks. Flatbuffers are written from the end: the schema comes last.
    """
    try:
        table = struct.unpack_from("<I", footer, 0)[0]
        fields = table - struct.unpack_from("<i", footer, table)[0]
        schema, vector = (table + struct.unpack_from("<H", footer, fields + 4 + 2 * field)[0] for field in (1, 3))
        schema, vector = (place + struct.unpack_from("<I", footer, place)[0] for place in (schema, vector))
        count = struct.unpack_from("<I", footer, vector)[0]
        blocks = np.frombuffer(footer, block, count, vector + 4)
    except (struct.error, ValueError):
        return np.empty(0, block), None
    rest = vector + 4 + blocks.nbytes
    # Where the schema starts, counted from the end, and all that follows the blocks.
    return blocks, b"%d %b" % (len(footer) - schema, footer[rest:]) if schema >= rest else None
