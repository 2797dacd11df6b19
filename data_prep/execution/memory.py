"""Giving memory back to the system: what allocators keep for later, and pages of mapped files."""

import ctypes
import mmap

import pyarrow as pa
from numpy.typing import NDArray

_stages = [""]
"""The one that this process works on."""


def release_unused(stage: str) -> None:
    """Return what Arrow's and the C library's allocators hold but nobody uses, so that stages do not add up.

    Args:
        stage: Comes next. Nothing is given back between units of one stage, which need the same again: a page that the
            system has to make anew costs more than many a loop over it.
    """
    if stage == _stages[0]:
        return
    _stages[0] = stage
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


def release_pages(array: NDArray) -> None:
    """Let go of the pages of an array that `numpy.load` mapped; they are read again when they are used."""
    mapped = getattr(array, "_mmap", None)
    if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)
