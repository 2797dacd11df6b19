"""Giving memory back to the system: what allocators keep for later, and pages of mapped files."""

import ctypes
import mmap
from functools import lru_cache

import pyarrow as pa
from numpy.typing import NDArray


@lru_cache(maxsize=1)
def release_before(step: str) -> None:
    """Return the memory that Arrow's and the C library's allocators keep unused, so that steps do not add up.

    It is called before each unit, and the cache of one call lets it act only when the process turns to another step:
    the next unit of a step needs the same memory again, and a page that the system has to provide again costs more than
    many a loop over it.

    Args:
        step: The step that comes next; "" after the last one.
    """
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it
    if trim is not None:
        trim(0)


def release_pages(array: NDArray) -> None:
    """Drop the pages of an array that `numpy.load` mapped; they are read again when they are used."""
    mapped = getattr(array, "_mmap", None)
    if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)
