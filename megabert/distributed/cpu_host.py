"""The host's cores and memory, for ranks that compute on a CPU."""

import os
import platform

import torch

from megabert.distributed.process_group import World
from megabert.ops.host_memory import keep_freed_memory


def share_host(world: World) -> None:
    """Give each rank on a host its share of the cores; unshared, every rank would start a thread on every core.

    A number of threads that the environment sets (OMP_NUM_THREADS) stands. Every rank calls it.
    """
    if world.device.type != "cpu":
        return
    keep_freed_memory()
    ranks_here = world.gather(platform.node()).count(platform.node())
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks_here))
