"""The trainer's own collectives, on top of a world's process groups."""

from collections.abc import Callable
from typing import Any, TypeVar

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
    outcome: list[Any] = [None, None]
    if world.rank == 0:
        try:
            outcome = [work(), None]
        except MegabertError as error:
            outcome = [None, error]
    if world.size > 1:
        dist.broadcast_object_list(outcome, src=0, group=world.gloo)
    if outcome[1] is not None:
        outcome[1].is_echo = world.rank != 0
        raise outcome[1]
    return outcome[0]  # type: ignore[no-any-return]


def agreement(world: World) -> Callable[[NDArray[np.int64]], NDArray[np.int64]]:
    """Return the function with which the loader thread agrees on a step with the other ranks.

    It sums masked positions and instances and takes the maximum of micro-steps and of the stop flag. The group is its
    own: the loader thread runs beside the main thread, whose collectives must not mix with it.
    """
    if world.size == 1:
        return lambda vector: vector
    group = dist.new_group(backend="gloo")

    def agree(vector: NDArray[np.int64]) -> NDArray[np.int64]:
        rows = [torch.empty(len(vector), dtype=torch.int64) for _ in range(world.size)]
        dist.all_gather(rows, torch.from_numpy(vector), group=group)
        everyone = torch.stack(rows).numpy()
        return np.concatenate([everyone[:, :2].sum(axis=0), everyone[:, 2:].max(axis=0)])

    return agree


def sum_over_ranks(world: World, values: torch.Tensor) -> torch.Tensor:
    """Sum a small tensor over the ranks, in place."""
    if world.size > 1:
        dist.all_reduce(values)
    return values


def gather_objects(world: World, value: Any) -> list[Any]:
    """Return every rank's value, in order of rank."""
    if world.size == 1:
        return [value]
    values: list[Any] = [None] * world.size
    dist.all_gather_object(values, value, group=world.gloo)
    return values
