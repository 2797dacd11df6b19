"""Giving memory back to the system: what allocators keep for later, and pages of mapped files."""

import ctypes
import mmap

import pyarrow as pa
from numpy.typing import NDArray


def release_unused() -> None:
    """Return what Arrow's and the C library's allocators hold but nobody uses, so that stages do not add up."""
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


def release_pages(array: NDArray) -> None:
    """Let go of the pages of an array that `numpy.load` mapped; they are read again when they are used."""
    mapped = getattr(array, "_mmap", None)
    if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)
