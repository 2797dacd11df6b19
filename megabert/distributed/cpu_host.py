"""A CPU host's cores and memory, shared fairly among its ranks."""

import ctypes
import logging
import os
import platform

import torch

from megabert.distributed.process_group import World

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
LARGEST = 2**31 - 1  # mallopt takes an int

logger = logging.getLogger(__name__)


def share_host(world: World) -> None:
    """Give each rank on a host its share of the cores; unshared, every rank would start a thread on every core.

    A number of threads that the environment sets (OMP_NUM_THREADS) is kept. Every rank calls this.
    """
    if world.device.type != "cpu":
        return
    keep_freed_memory()
    ranks_here = world.gather(platform.node()).count(platform.node())
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks_here))


def keep_freed_memory() -> bool:
    """Set glibc's malloc to serve large blocks from the heap and never to shrink it.

    A training step on a CPU allocates the same large tensors again and again. By default glibc maps each large block
    and unmaps it when it is freed, and the kernel zeroes every page again: 3 to 13% of a training step of the tiny
    preset on one core. The price is that the process never gives back its peak.

    Returns:
        Whether the C library took the settings; others than glibc do not know the call.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        logger.info("malloc is not glibc's: freed memory goes back to the kernel, steps are somewhat slower")
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, 1 << 30) and mallopt(M_TRIM_THRESHOLD, LARGEST))
