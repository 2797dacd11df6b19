"""Vectors written as they come: to Parquet, or to ``.npy``, whose header gets the number of rows at the end."""

# D width of a vector

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from megabert.errors import ConfigError
from megabert.schema.files import atomic_path

Write = Callable[[Sequence[NDArray[np.integer]], Sequence[NDArray[np.float32]]], None]
"""Writes consecutive lines, given their ids and their vectors of shape (D,), or (tokens, D) where tokens are kept."""


@contextmanager
def open_vectors(path: Path, *, width: int, pieces: Sequence[str] | None = None) -> Iterator[Write]:
    """Open a file for vectors; it appears once the block has ended without an error.

    Args:
        path: ``.parquet`` (columns ``line``, from 1, and ``embedding``; with tokens ``line``, ``tokens``,
            ``embeddings``) or ``.npy`` (float32 of shape (lines, D)).
        width: Size D of a vector.
        pieces: The vocabulary, if each token has a vector; None if each line has one.

    Raises:
        ConfigError: The suffix is neither of the two, or vectors of tokens are to go to a ``.npy`` file.
    """
    check_output(path, has_tokens=pieces is not None)
    with atomic_path(path) as temporary, open(temporary, "wb") as stream:
        if path.suffix == ".npy":
            with _npy(stream, width) as write:
                yield write
        else:
            with _parquet(stream, width, pieces) as write:
                yield write


def check_output(path: Path, *, has_tokens: bool) -> None:
    """Refuse a file name whose format cannot hold the vectors.

    Raises:
        ConfigError: The suffix is neither ``.parquet`` nor ``.npy``, or vectors of tokens are to go to a ``.npy`` file.
    """
    if path.suffix not in (".parquet", ".npy"):
        raise ConfigError(f"{path}: vectors go to .parquet or .npy, not to {path.suffix or 'a name without suffix'}.")
    if has_tokens and path.suffix == ".npy":
        raise ConfigError(
            f"{path}: lines differ in their number of tokens, which an array cannot hold. Write to .parquet."
        )


@contextmanager
def _npy(stream: BinaryIO, width: int) -> Iterator[Write]:
    lines = 0

    def header() -> None:
        # numpy leaves room for a growing first axis, so the last header is as long as the first, which it overwrites.
        content = {"descr": "<f4", "fortran_order": False, "shape": (lines, width)}
        np.lib.format.write_array_header_1_0(stream, content)

    def write(ids: Sequence[NDArray], vectors: Sequence[NDArray]) -> None:
        nonlocal lines
        lines += len(vectors)
        stream.write(np.stack(vectors).astype("<f4", copy=False).tobytes())

    header()
    begin = stream.tell()
    yield write
    stream.seek(0)
    header()
    assert stream.tell() == begin


@contextmanager
def _parquet(stream: BinaryIO, width: int, pieces: Sequence[str] | None) -> Iterator[Write]:
    vector = pa.list_(pa.float32(), width)
    fields = [("line", pa.int64())]
    fields += [("embedding", vector)] if pieces is None else [("tokens", pa.list_(pa.string()))]
    fields += [] if pieces is None else [("embeddings", pa.list_(vector))]
    schema = pa.schema(fields)
    lines = 0

    def write(ids: Sequence[NDArray], vectors: Sequence[NDArray]) -> None:
        nonlocal lines
        # All vectors are one flat array; offsets say which tokens belong to which line.
        columns = [pa.array(range(lines + 1, lines + 1 + len(vectors)), pa.int64())]
        flat = np.concatenate([array.reshape(-1) for array in vectors])
        rows = pa.FixedSizeListArray.from_arrays(pa.array(flat, pa.float32()), width)
        if pieces is None:
            columns.append(rows)
        else:
            offsets = pa.array(np.cumsum([0, *map(len, ids)]), pa.int32())
            texts = pa.array([pieces[index] for index in chain.from_iterable(ids)], pa.string())
            columns += [pa.ListArray.from_arrays(offsets, texts), pa.ListArray.from_arrays(offsets, rows)]
        lines += len(vectors)
        writer.write_table(pa.table(columns, schema=schema))

    with pq.ParquetWriter(stream, schema, compression="zstd", compression_level=1, use_dictionary=False) as writer:
        yield write
