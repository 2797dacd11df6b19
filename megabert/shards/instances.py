"""Instances as a shard holds them: record batches, checked before a reader follows their numbers; and their lengths.

A hash in a manifest vouches for bytes, not for sense. Arrow believes what a file says, so that an offset behind its
values makes a reader take foreign memory, and an id behind the vocabulary ends in an index error far from its cause.
Any program may have written a shard.

The *lengths index* next to a shard says how long each instance is, for a loader that plans without reading instances.
``train-00000-00.arrow`` has its index in ``train-00000-00.row_lengths.npy``: an array of numpy with a row an instance,
its length and, where masks are in the shards, its number of positions to predict. 2 or 4 bytes an instance, and those
of a range of instances are next to each other, so that a loader reads them in one go. It says nothing that the shard
does not say, so it is written again where it is missing or does not fit.
"""

# T tokens, M predictions, R rows

import io
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megabert.errors import DataError
from megabert.files import atomic_path
from megabert.shards.format import ShardMetadata

_LENGTH_TYPE = np.dtype("<u2")
_INDEX_SUFFIX = ".row_lengths.npy"
"""Another layout gets another suffix, and a file of the earlier one is not looked at: it may have the same size. Under
``.lengths.npy`` earlier versions had this layout, or all lengths and then all numbers of positions."""


class LengthsSpan(NamedTuple):
    """A part of a lengths index."""

    shard: Path
    rows: int
    """Instances of the shard."""
    first: int
    """First instance of the part, counted from the shard's first."""
    stop: int
    """The instance behind its last."""


def read_batch(reader: pa.RecordBatchFileReader, number: int, *, is_full: bool = True) -> pa.RecordBatch:
    """Return a record batch of a shard in which no offset is outside and no value is missing; see `read_batches`."""
    return read_batches(reader, range(number, number + 1), is_full=is_full)


def read_batches(reader: pa.RecordBatchFileReader, numbers: range, *, is_full: bool = True) -> pa.RecordBatch:
    """Return some record batches of a shard as one, in which no offset is outside and no value is missing.

    Args:
        reader: Reads a file whose schema is that of a shard (`ShardMetadata.from_arrow`).
        numbers: Indices of the batches, one at least. What is asked of a batch in Python takes as long for one of a few
            hundred rows as for one of thousands, so whoever reads them all takes many at a time.
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
        # A null of a list or in one: what is stored there is anything.
        inner = column.values if pa.types.is_list(column.type) else column
        if column.null_count or inner.null_count:
            raise DataError(f"record batch {number}: {name} has null values, where every instance needs one")


class FlatBatch(NamedTuple):
    """Instances as flat arrays: the values of each list column end to end, and where each row's begin."""

    ids_T: NDArray[np.integer]
    """Ids of all instances end to end, as stored: masked."""
    offsets: NDArray[np.integer]
    """Shape (R + 1,): where each instance starts, and the end."""
    b_start_R: NDArray[np.integer]
    """Where B starts in each instance; its length where there is none."""
    positions_M: NDArray[np.integer]
    """Predicted positions, counted from the start of their instance."""
    ends_M: NDArray[np.integer]
    """Shape (R + 1,): where each row's predictions end, after a 0."""
    originals_M: NDArray[np.integer]
    """Ids before masking at the predicted positions."""
    ends_originals: NDArray[np.integer]
    """Shape (R + 1,): as ``ends_M``, for ``originals_M``. Equal in a sound batch."""
    label_R: NDArray[np.integer]
    """``next_sentence_label`` of each instance."""

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Self:
        """Open a record batch of a shard, or a slice of one; values are not copied."""
        return cls(
            *flat_list(batch["input_ids"]),
            np.asarray(batch["segment_b_start"]),
            *flat_list(batch["masked_lm_positions"]),
            *flat_list(batch["masked_lm_ids"]),
            np.asarray(batch["next_sentence_label"]),
        )

    @property
    def predicted_M(self) -> NDArray[np.int64]:
        """Where the token of each prediction is in ``ids_T``."""
        return np.repeat(self.offsets[:-1], np.diff(self.ends_M)) + self.positions_M


def find_nonsense(batch: FlatBatch, metadata: ShardMetadata) -> tuple[int, str] | None:
    """Return the first row of a batch that no reader can use, and why; None where all can be used.

    This is what training relies on. Whether instances are as a build makes them (words masked whole, the right number
    of predictions, special tokens in their places) is for `megabert-data verify` to say.
    """
    ids_T, starts, b_start_R, positions_M, position_starts, originals_M, original_starts, label_R = batch
    length_R, count_R = np.diff(starts), np.diff(position_starts)
    has_pairs = metadata.objective != "none"
    most = metadata.max_predictions_per_seq if metadata.masking == "static" else 0
    # [CLS] A [SEP] B [SEP] with a token at least on each side; without B it starts after the end.
    first_b, last_b = (3, length_R - 2) if has_pairs else (length_R, length_R)
    limits = (
        ("the length of input_ids", length_R, 5 if has_pairs else 3, metadata.max_seq_length),
        ("segment_b_start", b_start_R, first_b, last_b),
        ("next_sentence_label", label_R, 0, int(has_pairs)),
        ("the length of masked_lm_positions", count_R, 0, most),
        ("the length of masked_lm_ids", np.diff(original_starts), count_R, count_R),
    )
    for name, values, low, high in limits:
        outside = (values < low) | (values > high)
        if outside.any():
            row = int(outside.argmax())
            low, high = (int(np.broadcast_to(limit, len(values))[row]) for limit in (low, high))
            return row, f"{name} is {values[row]}, allowed is {low if low == high else f'{low} to {high}'}"
    for name, ids, ends in (("input_ids", ids_T, starts), ("masked_lm_ids", originals_M, original_starts)):
        if len(ids) and ids.max() >= metadata.vocab_size:
            index = int(ids.argmax())
            return _row(ends, index), f"{name} has {ids[index]}, the vocabulary has {metadata.vocab_size} pieces"
    # Each row's positions ascend, so that its last one is the greatest.
    is_wrong = positions_M >= np.repeat(length_R, count_R)
    is_first = np.zeros(len(positions_M) + 1, bool)
    is_first[position_starts] = True
    is_wrong[1:] |= (positions_M[1:] <= positions_M[:-1]) & ~is_first[1:-1]
    if is_wrong.any():
        index = int(is_wrong.argmax())
        row = _row(position_starts, index)
        return row, f"masked_lm_positions has {positions_M[index]}, they have to ascend and be below {length_R[row]}"
    return None


def flat_list(column: pa.ListArray) -> tuple[NDArray[np.integer], NDArray[np.int64]]:
    """Return the values and the offsets (length + 1, from 0) of a list column, without copying values."""
    offsets = np.asarray(column.offsets)
    values = np.asarray(column.values)[offsets[0] : offsets[-1]] if len(column) else np.asarray(column.values)[:0]
    return values, np.subtract(offsets, offsets[:1], dtype=np.int64)


def _row(starts: NDArray[np.integer], index: int) -> int:
    return int(np.searchsorted(starts, index, side="right")) - 1


def lengths_path(shard: Path) -> Path:
    """Return where the index of a shard is."""
    return Path(_index_path(shard))


def write_lengths(shard: Path, *kinds: NDArray[np.integer]) -> Path:
    """Write the index of a shard whole or not at all, and return its path.

    Args:
        shard: The shard.
        *kinds: Tokens of each instance and, where masks are in the shards, the positions to predict of each.
    """
    path = lengths_path(shard)
    with atomic_path(path) as temporary, open(temporary, "xb") as stream:
        values = np.stack(kinds, axis=1).astype(_LENGTH_TYPE)
        stream.write(_npy_header(len(values), len(kinds)) + values.tobytes())
    return path


def read_lengths(shard: Path, rows: int, kinds: int) -> NDArray[np.uint16] | None:
    """Return a shard's whole index; None where there is no index, or none of such a shard.

    Args:
        shard: The shard.
        rows: Its instances.
        kinds: 1 where the loader draws the masks, 2 where they are in the shard.

    Returns:
        Shape (kinds, instances): tokens, then positions to predict.
    """
    header, whole = _npy_header(rows, kinds), LengthsSpan(shard, rows, 0, rows)
    descriptor = _open_index(whole, kinds)
    if descriptor is None:
        return None
    try:
        values = _read_index(descriptor, whole, kinds)
        return None if values is None or os.pread(descriptor, len(header), 0) != header else values.T
    except OSError:
        return None
    finally:
        os.close(descriptor)


def read_length_spans(spans: Sequence[LengthsSpan], kinds: int) -> list[NDArray[np.uint16] | None]:
    """Return parts of indices; None for one whose index is missing, or none of such a shard.

    The system is asked for all of them before the first one is read, so that it reads many at a time. The size of a
    file has to tell whether it is such an index, because its header would be a second read of the disk.

    Args:
        spans: The parts.
        kinds: 1 where the loader draws the masks, 2 where they are in the shard.

    Returns:
        For each part, shape (instances, kinds): tokens, then positions to predict.
    """
    descriptors: list[int | None] = []
    try:
        for span in spans:
            descriptors.append(_open_index(span, kinds))
        parts = zip(descriptors, spans, strict=True)
        return [None if descriptor is None else _read_index(descriptor, span, kinds) for descriptor, span in parts]
    finally:
        for descriptor in descriptors:
            if descriptor is not None:
                os.close(descriptor)


def _open_index(span: LengthsSpan, kinds: int) -> int | None:
    """Open an index and ask the system for a part of it; None where there is no index, or none of such a shard."""
    try:
        descriptor = os.open(_index_path(span.shard), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would wait
    except OSError:
        return None
    start, size, file_size = _bytes_of(span, kinds)
    with suppress(OSError):
        if os.fstat(descriptor).st_size == file_size:
            os.posix_fadvise(descriptor, start, size, os.POSIX_FADV_WILLNEED)
            return descriptor
    os.close(descriptor)
    return None


def _read_index(descriptor: int, span: LengthsSpan, kinds: int) -> NDArray[np.uint16] | None:
    """Read a part of an index; None where it cannot be read, or became shorter meanwhile."""
    # Read, and not mapped: of a file that someone truncates a mapping would end the process.
    start, size, _ = _bytes_of(span, kinds)
    try:
        return np.frombuffer(os.pread(descriptor, size, start), _LENGTH_TYPE).reshape(span.stop - span.first, kinds)
    except (OSError, ValueError):
        return None


def _bytes_of(span: LengthsSpan, kinds: int) -> tuple[int, int, int]:
    """Return where a part of an index starts, how many bytes it has, and how many the whole file has."""
    width, start = kinds * _LENGTH_TYPE.itemsize, len(_npy_header(span.rows, kinds))
    return start + span.first * width, (span.stop - span.first) * width, start + span.rows * width


def _index_path(shard: Path) -> str:
    """Return where the index of a shard is; a loader asks so often that a Path would cost as much as the reading."""
    return os.path.splitext(shard)[0] + _INDEX_SUFFIX


@lru_cache(maxsize=1024)
def _npy_header(rows: int, kinds: int) -> bytes:
    """Return the bytes with which numpy begins a file that holds such an array."""
    stream = io.BytesIO()
    description = {"descr": _LENGTH_TYPE.str, "fortran_order": False, "shape": (rows, kinds)}
    np.lib.format.write_array_header_1_0(stream, description)
    return stream.getvalue()
