"""Arrow IPC files and arrays of numpy: write one whole or not at all, open one mapped, check its offsets and types.

Arrow and the compiled loops believe offsets and lengths, so that a damaged file would make them read and write foreign
memory. So all files that steps leave for one another are opened here: `checked_batches` checks every
offset of a batch, `checked_array` type and shape; their readers check the meaning of the numbers.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megabert.foundation.errors import DataError, HaltedError
from megabert.foundation.files import atomic_path, check_regular
from megabert.tokens.shards.shard_file import read_batches

MAX_LIST_VALUES = (1 << 31) - 1
"""Values that the offsets of a list column can number."""
WRITE_BYTES = 1 << 20
"""Bytes that are gathered before they are written to a file; a record batch of a shard has about 80 KiB."""


def write_batches(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """Write an Arrow IPC file whole or not at all.

    Args:
        path: The file.
        schema: Schema that all batches have.
        batches: Record batches in order.
    """
    options = pa.ipc.IpcWriteOptions(use_threads=False)
    with atomic_path(path) as temporary:
        try:
            # Arrow's own files: to one of Python's it would hand each buffer as a copy, by a call.
            with (
                pa.OSFile(str(temporary), "wb") as file,
                pa.BufferedOutputStream(file, WRITE_BYTES) as stream,
                pa.ipc.new_file(stream, schema, options=options) as writer,
            ):
                for batch in batches:
                    writer.write_batch(batch)
        except OSError as error:
            # Arrow's errors name no file, or the temporary one in their text.
            if error.errno is None or error.filename is not None:
                raise
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from error


def open_mapped(path: Path) -> pa.ipc.RecordBatchFileReader:
    """Open an Arrow IPC file without reading it; uncompressed columns are views of the file.

    Raises:
        DataError: The file is missing or no Arrow file.
    """
    try:
        check_regular(path)
        return pa.ipc.open_file(pa.memory_map(str(path)))
    except (OSError, pa.ArrowException) as error:
        raise unreadable(path, str(error)) from error


def unreadable(path: Path, what: str) -> HaltedError:
    """Return the error for a file of the build that is missing or damaged."""
    return HaltedError(
        f"{path}: missing or damaged ({(what.splitlines() or ['it is cut'])[0]}). "
        "Run the same `megabert-data build` command again, which writes missing or damaged files again."
    )


def checked_batches(path: Path, schema: pa.Schema, *, is_full: bool = True) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a mapped file of the build, in which no offset is outside and no value is missing.

    Args:
        path: The file.
        schema: Columns that it has to have.
        is_full: As in `read_batches`; without it, text that nobody looks at is not read.

    Raises:
        DataError: It has others, or is damaged.
    """
    reader = open_mapped(path)
    if reader.schema != schema:
        raise unreadable(path, f"its columns are not {', '.join(schema.names)}")
    for number in range(reader.num_record_batches):
        try:
            yield read_batches(reader, [number], is_full=is_full)
        except DataError as error:
            raise unreadable(path, str(error)) from error


def one_batch(path: Path, schema: pa.Schema) -> pa.RecordBatch:
    """Return the first record batch of a file as `checked_batches` reads it; one without rows if the file has none."""
    return next(checked_batches(path, schema), None) or pa.RecordBatch.from_pylist([], schema=schema)


def checked_table(path: Path, schema: pa.Schema) -> pa.Table:
    """Return all of a file as `checked_batches` reads it."""
    return pa.Table.from_batches(checked_batches(path, schema), schema)


def checked_array(path: Path, dtype: type[np.generic], shape: tuple[int | None, ...]) -> NDArray[Any]:
    """Return the array of a file of numpy, mapped.

    Args:
        path: The file.
        dtype: Type of its elements.
        shape: Its size along each axis; None for any.

    Raises:
        DataError: It is no such array.
    """
    try:
        check_regular(path)
        array: NDArray[Any] = np.load(path, mmap_mode="r")
    except Exception as error:  # numpy parses the header as text of Python, so that any kind of error may come of it
        raise unreadable(path, str(error)) from error
    fits = array.ndim == len(shape) and all(size in (None, own) for size, own in zip(shape, array.shape, strict=True))
    if array.dtype != dtype or not fits or not array.flags.c_contiguous:
        raise unreadable(path, f"it holds {array.dtype} of shape {array.shape}")
    return array


def make_list(values: NDArray[np.integer], offsets: NDArray[np.integer]) -> pa.ListArray:
    """Make a list column from flat values and offsets.

    Raises:
        DataError: The values are more than offsets can number.
    """
    if offsets[-1] > MAX_LIST_VALUES:
        raise DataError(
            f"{offsets[-1]:,} tokens or sentences are in one bucket, and a file holds {MAX_LIST_VALUES:,}. Copies of "
            "one text are in one bucket: add duplicate_documents to --clean, or give more --buckets."
        )
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(values))


def gather(values: NDArray[np.integer], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.integer]:
    """Return ``values[start : start + length]`` for each range, end to end."""
    from data_prep.documents.array_loops import copy_ranges

    targets = offsets_of(lengths)
    result = np.empty(int(targets[-1]), values.dtype)
    copy_ranges(values, 0, np.arange(len(starts)), starts, lengths, targets, result)
    return result


def offsets_of(lengths: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return where consecutive ranges of these lengths start, from 0, and where the last one ends."""
    # Converted first: a running sum over narrower integers takes eight times as long.
    result = np.zeros(len(lengths) + 1, dtype=np.int64)
    result[1:] = lengths
    return np.cumsum(result, out=result)
