"""Arrow IPC files: write one whole or not at all, open one mapped, view a list column as numpy arrays."""

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megabert.errors import DataError
from megabert.files import atomic_path, check_regular

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
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception) -> DataError:
    """Return the error for a file of the build that is missing or no Arrow file."""
    return DataError(
        f"{path}: cannot be opened as an Arrow file ({str(error).splitlines()[0]}). "
        "Run the same `megabert-data build` command again, which writes missing or damaged files again."
    )


def single_batch(path: Path) -> pa.RecordBatch:
    """Return the record batch of a mapped file that holds one; an empty one where the file holds none."""
    reader = open_mapped(path)
    return reader.get_batch(0) if reader.num_record_batches else pa.RecordBatch.from_pylist([], schema=reader.schema)


def make_list(values: NDArray[np.integer], offsets: NDArray[np.integer]) -> pa.ListArray:
    """Make a list column from flat values and offsets."""
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(values))


def gather(values: NDArray[np.integer], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.integer]:
    """Return ``values[start : start + length]`` for each range, end to end."""
    from data_prep.array_loops import Ranges, copy_ranges

    targets = offsets_of(lengths)
    result = np.empty(int(targets[-1]), values.dtype)
    copy_ranges(values, 0, np.arange(len(starts)), Ranges(starts, lengths, targets), result)
    return result


def offsets_of(lengths: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return where consecutive ranges of these lengths start, from 0, and where the last one ends."""
    # Converted first: a running sum over narrower integers takes eight times as long.
    result = np.zeros(len(lengths) + 1, dtype=np.int64)
    result[1:] = lengths
    return np.cumsum(result, out=result)
