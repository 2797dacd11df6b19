"""One shard, mapped into memory: where its record batches are, and its bytes asked for before they are needed.

A build stores shards uncompressed and in small record batches (`shards.rows_per_batch`). Instances are copied
straight out of the file (`copy_loops`), so that its pages are the only copy a node has, and a row costs one read of its
batch. A file of another layout is refused; pyarrow opens it only for the error message.

Record batches that pyarrow does read are checked before anyone follows the numbers in them (`read_batches`,
`find_nonsense`): a hash in a manifest vouches for bytes, not for sense. Arrow trusts a file, in which an offset past
the values makes a reader access memory that is not its own; an id beyond the vocabulary ends in an index error far from
its cause. Any program may have written a shard.
"""

# T tokens, M predictions, R rows

import errno
import math
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megabert.foundation.errors import DataError
from megabert.foundation.files import check_regular
from megabert.tokens.shards.columns import FlatInstances
from megabert.tokens.shards.folder import ShardEntry
from megabert.tokens.shards.format import ShardMetadata, rows_per_batch, token_type

COPY_AGAIN = "Copy the shard again, or delete it and run the same `megabert-data build` command."
BUILD_AGAIN = "Build the shards again, or correct the program that wrote them (docs/instances.md)."
_TAIL_BYTES = 16 * 1024
"""The end of a file that is read first: the footer of a shard is about 6 KiB."""
_MAGIC = b"ARROW1"


class ShardFile:
    """A shard that is open for reading."""

    def __init__(self, path: Path, entry: ShardEntry, metadata: ShardMetadata, schema: bytes | None) -> None:
        """Map the file and check its metadata against the manifest.

        Args:
            path: The file.
            entry: Its entry in the manifest.
            metadata: The properties that the manifest states for all shards.
            schema: The ``schema`` of a shard that was found to agree with the manifest; one that equals it agrees, too.

        Raises:
            DataError: It is no such shard.
        """
        from megabert.tokens.shards.copy_loops import BLOCK, MappedShard

        self.path = path
        self._metadata = metadata
        with self._naming_damage():
            self._map, footer = _map(path)
            # A page that was not asked for would bring 128 KiB around it.
            self._map.madvise(mmap.MADV_RANDOM)
            blocks, self.schema = _blocks(footer, BLOCK)
            """The schema as bytes."""
            if self.schema is None or self.schema != schema:
                self._check_metadata(metadata)
        rows = rows_per_batch(metadata.max_seq_length)
        self._rows, self._batch_rows = entry.rows, rows
        if len(blocks) != -(-entry.rows // rows):
            raise self._layout_error()
        starts = np.minimum(np.arange(len(blocks) + 1) * rows, entry.rows)
        types = np.uint8, np.uint16, np.int32, np.int64, np.dtype(token_type(metadata.vocab_size).to_pandas_dtype())
        views = (np.frombuffer(self._map, kind, len(self._map) // np.dtype(kind).itemsize) for kind in types)
        token_bytes = types[-1].itemsize
        # Four standard deviations of where the middle of a batch is, if lengths vary by a quarter of the longest.
        slack = metadata.max_seq_length * token_bytes * math.isqrt(rows) // 2
        self.mapped = MappedShard._make([*views, blocks, starts, entry.tokens * token_bytes, slack])
        """The file as arrays, for the loops that find and copy instances."""

    def explain(self, number: int, row: int) -> DataError:
        """Return the error for an instance that could not be copied.

        Args:
            number: Its record batch.
            row: Its row there.
        """
        starts, remedy = self.mapped.starts, BUILD_AGAIN
        with self._naming_damage():
            try:
                batch = read_batches(self._reader, [number])
            except DataError as error:
                return self.damaged(str(error))
            if len(batch) != starts[number + 1] - starts[number]:
                return self._layout_error()
            nonsense = find_nonsense(FlatInstances.of(batch.slice(row, 1)), self._metadata)
            if nonsense is not None:
                return self.damaged(f"row {starts[number] + row}: {nonsense[1]}", remedy)
        return self.damaged(f"record batch {number} is compressed, or not laid out as a build writes it", remedy)

    def prefetch(self, parts: NDArray[np.int64]) -> None:
        """Ask the system to read parts of the file, so that it reads many at a time; returns at once.

        Args:
            parts: Shape (parts, 2): first byte, at the beginning of a page, and end.
        """
        for begin, end in parts.tolist():
            if 0 <= begin < end <= len(self._map):
                self._map.madvise(mmap.MADV_WILLNEED, begin, end - begin)

    def damaged(self, what: str, remedy: str = COPY_AGAIN) -> DataError:
        """Return the error for a shard that cannot be used."""
        return DataError(f"{self.path}: {what}. {remedy}")

    @cached_property
    def _reader(self) -> pa.RecordBatchFileReader:
        """The file for pyarrow, which takes several times as long to open it as reading a row takes."""
        # One thread decodes: the ranks of a node share its cores, and the loader has a whole step's time.
        with self._naming_damage():
            return pa.ipc.open_file(pa.py_buffer(self._map), options=pa.ipc.IpcReadOptions(use_threads=False))

    @contextmanager
    def _naming_damage(self) -> Iterator[None]:
        """Turn an error from opening a damaged file into one that names the file."""
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
                f"{getattr(expected, other[0])!r}"
            )

    def _layout_error(self) -> DataError:
        """Return the error for a shard whose record batches do not have the rows that follow from the manifest."""
        with self._naming_damage():
            sizes = [self._reader.get_batch(number).num_rows for number in range(self._reader.num_record_batches)]
        if sum(sizes) != self._rows:
            return self.damaged(f"it has {sum(sizes)} rows, the manifest says {self._rows}")
        wanted = -(-self._rows // self._batch_rows)
        return self.damaged(
            f"its {self._rows} rows are in {len(sizes)} record batches, the first of {sizes[0]}; "
            f"a build writes {wanted} of {self._batch_rows}",
            BUILD_AGAIN,
        )


def _map(path: Path) -> tuple[mmap.mmap, bytes]:
    """Map a file into memory, and return its footer as well; b"" if there is none."""
    check_regular(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        # The end of the file in one read; the mapping would ask for it page by page.
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


def read_batches(reader: pa.RecordBatchFileReader, numbers: Sequence[int], *, is_full: bool = True) -> pa.RecordBatch:
    """Return some record batches of a shard as one, in which no offset is outside and no value is missing.

    Args:
        reader: Reads a file with the schema of a shard (`ShardMetadata.from_arrow`).
        numbers: Indices of the batches, one at least. A call for a batch of some hundred rows takes as long as for one
            of thousands, so a caller that reads all of them takes many at a time.
        is_full: Whether each offset is checked, or only how much there is of each column: then the caller checks the
            offsets that it uses.

    Raises:
        DataError: A batch is damaged; the message is a clause that the caller completes with the file.
    """
    batches = []
    for number in numbers:
        try:
            batches.append(reader.get_batch(number))
            batches[-1].validate(full=is_full)
        except (pa.ArrowException, OSError, SystemError) as error:
            raise DataError(f"record batch {number} cannot be read ({str(error).splitlines()[0]})") from error
    batch, number = batches[0], numbers[0]
    if len(batches) > 1:
        batch = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    # Most batches have no room for nulls: a column's first buffer, and the first of a list's values, would be that.
    if any(buffer is not None for column in batch.columns for buffer in column.buffers()[::2]):
        _refuse_nulls(batch, number)
    return batch


def _refuse_nulls(batch: pa.RecordBatch, number: int) -> None:
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        # A null of a list or in one: the stored value may be anything.
        inner = column.values if pa.types.is_list(column.type) else column
        if column.null_count or inner.null_count:
            raise DataError(f"record batch {number}: {name} has null values, where every instance needs one")


def find_nonsense(batch: FlatInstances, metadata: ShardMetadata) -> tuple[int, str] | None:
    """Return the first row of a batch that no reader can use, and why; None if all can be used.

    Training relies on no more than this. Whether instances are as a build makes them (words masked whole, the right
    number of predictions, special tokens in their places) is checked by `megabert-data verify`.
    """
    starts, position_starts = batch.token_starts, batch.masked_starts
    length_R, count_R = np.diff(starts), np.diff(position_starts)
    has_pairs = metadata.objective != "none"
    most = metadata.max_predictions_per_seq if metadata.masking == "static" else 0
    # [CLS] A [SEP] B [SEP] with a token at least on each side; without B it starts after the end.
    first_b, last_b = (3, length_R - 2) if has_pairs else (length_R, length_R)
    # One number per row: each has its bounds.
    limits = (
        ("the length of input_ids", length_R, 5 if has_pairs else 3, metadata.max_seq_length),
        ("segment_b_start", batch.segment_b_starts, first_b, last_b),
        ("next_sentence_label", batch.next_sentence_labels, 0, int(has_pairs)),
        ("the length of masked_lm_positions", count_R, 0, most),
        ("the length of masked_lm_ids", np.diff(batch.masked_id_starts), count_R, count_R),
    )
    for name, values, low, high in limits:
        outside = (values < low) | (values > high)
        if outside.any():
            row = int(outside.argmax())
            low, high = (int(np.broadcast_to(limit, len(values))[row]) for limit in (low, high))
            return row, f"{name} is {values[row]}, allowed is {low if low == high else f'{low} to {high}'}"
    # Ids are pieces of the vocabulary.
    id_columns = (("input_ids", batch.input_ids, starts), ("masked_lm_ids", batch.masked_ids, batch.masked_id_starts))
    for name, ids, ends in id_columns:
        if len(ids) and ids.max() >= metadata.vocab_size:
            index = int(ids.argmax())
            return _row(ends, index), f"{name} has {ids[index]}, the vocabulary has {metadata.vocab_size} pieces"
    # Each row's positions ascend, so that its last one is the greatest.
    positions = batch.masked_positions
    is_wrong = positions >= np.repeat(length_R, count_R)
    is_first = np.zeros(len(positions) + 1, bool)
    is_first[position_starts] = True
    is_wrong[1:] |= (positions[1:] <= positions[:-1]) & ~is_first[1:-1]
    if is_wrong.any():
        index = int(is_wrong.argmax())
        row = _row(position_starts, index)
        return row, f"masked_lm_positions has {positions[index]}, they have to ascend and be below {length_R[row]}"
    return None


def _row(starts: NDArray[np.integer], index: int) -> int:
    return int(np.searchsorted(starts, index, side="right")) - 1
