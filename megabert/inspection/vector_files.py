"""Vectors written as they come: to Parquet, or to ``.npy``, whose header learns the count at the end."""

# B lines, D width

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
"""Takes the ids of some lines and their vectors: of shape (D,), or (tokens, D) where tokens are kept."""


@contextmanager
def open_vectors(path: Path, *, width: int, pieces: Sequence[str] | None = None) -> Iterator[Write]:
    """Open a file for vectors; it appears when the block ends well.

    Args:
        path: ``.parquet`` (columns ``line``, from 1, and ``embedding``; with tokens ``line``, ``tokens``,
            ``embeddings``) or ``.npy`` (float32 of shape (lines, D)).
        width: D.
        pieces: The vocabulary, where a line has a vector a token; None where it has one.

    Raises:
        ConfigError: Another suffix, or tokens in a ``.npy``.
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
    """Refuse a file name that the vectors cannot go to.

    Raises:
        ConfigError: Another suffix than the two, or tokens in a ``.npy``.
    """
    if path.suffix not in (".parquet", ".npy"):
        raise ConfigError(f"{path}: vectors go to .parquet or .npy, not to {path.suffix or 'a name without suffix'}.")
    if has_tokens and path.suffix == ".npy":
        raise ConfigError(f"{path}: lines have different numbers of tokens, an array has not. Write to .parquet.")


@contextmanager
def _npy(stream: BinaryIO, width: int) -> Iterator[Write]:
    lines = 0

    def header() -> None:
        # numpy leaves room for a growing first axis, so the last header is as long as the first
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
