"""The index of the lengths of a shard's instances, for a loader that plans without reading instances.

``train-00000-00.arrow`` has its index in ``train-00000-00.row_lengths.npy``: an array of numpy with a row per
instance, its length and, if masks are in the shards, its number of positions to predict. It takes 2 or 4 bytes per
instance, and a range of instances is one read. It says nothing that the shard does not say, so it is written again if
it is missing or does not fit.
"""

import io
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from megabert.files import atomic_path, open_to_read

_LENGTH_TYPE = np.dtype("<u2")
_INDEX_SUFFIX = ".row_lengths.npy"


class LengthsSpan(NamedTuple):
    """A part of a lengths index."""

    shard: Path
    rows: int
    """Instances of the shard."""
    first: int
    """First instance of the part, counted from the shard's first."""
    stop: int
    """The instance after its last."""


def lengths_path(shard: Path) -> Path:
    """Return where the index of a shard is."""
    return Path(_index_path(shard))


def write_lengths(shard: Path, *kinds: NDArray[np.integer]) -> Path:
    """Write the index of a shard whole or not at all, and return its path.

    Args:
        shard: The shard.
        *kinds: Tokens of each instance and, if masks are in the shards, the positions to predict of each.
    """
    path = lengths_path(shard)
    with atomic_path(path) as temporary, open(temporary, "xb") as stream:
        values = np.stack(kinds, axis=1).astype(_LENGTH_TYPE)
        stream.write(_npy_header(len(values), len(kinds)) + values.tobytes())
    return path


def read_lengths(shard: Path, rows: int, kinds: int) -> NDArray[np.uint16] | None:
    """Return a shard's whole index; None if there is no index, or none of such a shard.

    Args:
        shard: The shard.
        rows: Its instances.
        kinds: 1 if the loader draws the masks, 2 if they are in the shard.

    Returns:
        Shape (kinds, instances): tokens, then positions to predict.
    """
    (values,) = read_length_spans([LengthsSpan(shard, rows, 0, rows)], kinds)
    if values is None:
        return None
    header = _npy_header(rows, kinds)
    with suppress(OSError), open_to_read(lengths_path(shard)) as stream:
        if stream.read(len(header)) == header:
            return values.T
    return None


def read_length_spans(spans: Sequence[LengthsSpan], kinds: int) -> list[NDArray[np.uint16] | None]:
    """Return parts of indices; None for one whose index is missing, or none of such a shard.

    The system is asked for all of them before the first one is read, so that it reads many at a time. The size of a
    file has to tell whether it is such an index, because its header would be a second read of the disk.

    Args:
        spans: The parts.
        kinds: 1 if the loader draws the masks, 2 if they are in the shard.

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
    """Open an index and ask the system for a part of it; None if there is no index, or none of such a shard."""
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
    """Read a part of an index; None if it cannot be read, or became shorter meanwhile."""
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
