"""Keep freed memory in the process: a CPU training step allocates the same large tensors again and again."""

import ctypes
import logging

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
LARGEST = 2**31 - 1

logger = logging.getLogger(__name__)


def keep_freed_memory() -> bool:
    """Tell glibc's malloc to serve large blocks from the heap and never to shrink it.

    By default it maps each large block anew and unmaps it when freed, and the kernel zeroes every page again: 3 to 13%
    of a training step of the tiny preset on one core. The price is that the process holds on to its peak.

    Returns:
        Whether the C library took it; others than glibc do not know the call.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        logger.info("malloc is not glibc's: freed memory goes back to the kernel, steps are somewhat slower")
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, 1 << 30) and mallopt(M_TRIM_THRESHOLD, LARGEST))
