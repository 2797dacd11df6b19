"""The trainer's own collectives, on top of a world's process groups."""

from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from megabert.distributed.process_group import World


def agreement(world: World) -> Callable[[NDArray[np.int64]], NDArray[np.int64]]:
    """Return the function with which the loader thread agrees on a step with the other ranks.

    It sums masked positions and instances and takes the maximum of micro-steps and of the stop flag.
    """

    def agree(vector: NDArray[np.int64]) -> NDArray[np.int64]:
        rows = [torch.empty(len(vector), dtype=torch.int64) for _ in range(world.size)]
        dist.all_gather(rows, torch.from_numpy(vector), group=world.loader)
        everyone = torch.stack(rows).numpy()
        return np.concatenate([everyone[:, :2].sum(axis=0), everyone[:, 2:].max(axis=0)])

    return agree


def sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """Sum a small tensor over the ranks, in place, on its device."""
    dist.all_reduce(values)
    return values
