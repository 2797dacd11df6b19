"""The trainer's own collectives, on top of a world's process groups."""

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from megabert.distributed.process_group import World
from megabert.errors import MegabertError

Result = TypeVar("Result")


def on_main(world: World, work: Callable[[], Result]) -> Result:
    """Run ``work`` on rank 0 and return its result on every rank.

    Raises:
        MegabertError: What ``work`` raised, on every rank alike, so that none is left waiting; the other ranks'
            copies are marked ``is_echo``, since rank 0 reports the error.
    """
    result, failure = None, None
    if world.is_main:
        try:
            result = work()
        except MegabertError as error:
            failure = error
    result, failure = world.broadcast((result, failure))
    if failure is not None:
        failure.is_echo = not world.is_main
        raise failure
    return result  # type: ignore[return-value]


def agreement(world: World) -> Callable[[NDArray[np.int64]], NDArray[np.int64]]:
    """Return the function with which the loader thread agrees on a step with the other ranks.

    It sums masked positions and instances and takes the maximum of micro-steps and of the stop flag.
    """

    def agree(vector: NDArray[np.int64]) -> NDArray[np.int64]:
        rows = [torch.empty(len(vector), dtype=torch.int64) for _ in range(world.size)]
        dist.all_gather(rows, torch.from_numpy(vector), group=world.gloo)
        everyone = torch.stack(rows).numpy()
        return np.concatenate([everyone[:, :2].sum(axis=0), everyone[:, 2:].max(axis=0)])

    return agree


def sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """Sum a small tensor over the ranks, in place, on its device."""
    dist.all_reduce(values)
    return values
