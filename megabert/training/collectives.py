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
        Exception: What ``work`` raised on rank 0; on the other ranks an echo of it, so that none is left waiting.
    """
    return world.broadcast(on_all(world, lambda: work() if world.is_main else None))  # type: ignore[no-any-return]


def on_all(world: World, work: Callable[[], Result]) -> Result:
    """Run ``work`` on every rank and return the rank's own result; if it fails on any rank, fail on all.

    Raises:
        Exception: The rank's own error; where the rank itself had none, or rank 0 reports the same, an error marked
            ``is_echo``, which is not shown again.
    """
    result, failure = None, None
    try:
        result = work()
    except Exception as error:
        failure = error
    outcomes = world.gather((failure and str(failure), getattr(failure, "exit_code", 1)))
    failed = [(rank, text, code) for rank, (text, code) in enumerate(outcomes) if text is not None]
    if not failed:
        return result  # type: ignore[return-value]
    first, text, code = failed[0]
    if failure is not None and (world.rank == first or text != str(failure)):
        raise failure
    echo = MegabertError(text)
    echo.exit_code, echo.is_echo = code, True
    raise echo


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
