"""The lengths index next to a shard: how long each instance is, for a loader that plans without reading instances.

``train-00000-00.arrow`` has its index in ``train-00000-00.lengths.npy``: an array of numpy with a row of lengths and,
where masks are in the shards, a row of the numbers of positions to predict. 2 or 4 bytes an instance. It says nothing
that the shard does not say, so it is written again where it is missing or does not fit.
"""

import io
import os
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from megabert.schema.files import atomic_path

_TYPE = np.dtype("<u2")


def lengths_path(shard: Path) -> Path:
    """Return where the index of a shard is."""
    return shard.with_suffix(".lengths.npy")


def write_lengths(shard: Path, *rows: NDArray[np.integer]) -> Path:
    """Write the index of a shard whole or not at all, and return its path.

    Args:
        shard: The shard.
        *rows: Tokens of each instance and, where masks are in the shards, the positions to predict of each.
    """
    path = lengths_path(shard)
    with atomic_path(path) as temporary:
        temporary.write_bytes(_header(len(rows), len(rows[0])) + np.stack(rows).astype(_TYPE).tobytes())
    return path


def read_lengths(shard: Path, rows: int, kinds: int, span: tuple[int, int]) -> NDArray[np.uint16] | None:
    """Return a part of a shard's index; None where there is no index, or none of such a shard.

    Args:
        shard: The shard.
        rows: Its instances.
        kinds: 1 where the loader draws the masks, 2 where they are in the shard.
        span: First instance, and the one behind the last.

    Returns:
        Shape (kinds, instances): tokens, then positions to predict.
    """
    header, (first, stop) = _header(kinds, rows), span
    try:
        descriptor = os.open(lengths_path(shard), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        # Read, and not mapped: of a file that someone truncates a mapping would end the process.
        size = os.fstat(descriptor).st_size
        if size != len(header) + kinds * rows * _TYPE.itemsize or os.pread(descriptor, len(header), 0) != header:
            return None
        starts = [len(header) + (kind * rows + first) * _TYPE.itemsize for kind in range(kinds)]
        parts = [os.pread(descriptor, (stop - first) * _TYPE.itemsize, start) for start in starts]
        values = np.frombuffer(b"".join(parts), _TYPE)
        return values.reshape(kinds, stop - first)
    except (OSError, ValueError):  # a ValueError: it became shorter meanwhile
        return None
    finally:
        os.close(descriptor)


@lru_cache(maxsize=1024)
def _header(kinds: int, rows: int) -> bytes:
    """Return the bytes with which numpy begins a file that holds such an array."""
    stream = io.BytesIO()
    description = {"descr": _TYPE.str, "fortran_order": False, "shape": (kinds, rows)}
    np.lib.format.write_array_header_1_0(stream, description)
    return stream.getvalue()
