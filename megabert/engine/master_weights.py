"""The float32 masters in memory: saved and restored, started over from whole parameters, gathered into whole ones.

Fine-tuning uses these: it keeps the best masters of a training in memory, and trains the same engine again for the next
seed, which is faster than building another one.
"""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from megabert.distributed.process_group import World
from megabert.engine.engine import Engine


def copy_masters(engine: Engine) -> list[Tensor]:
    """Return copies of this rank's fragments on the CPU, in the order of the fragment table."""
    return [fragment.view().to("cpu", copy=True) for fragment in engine.fragments]


def put_back_masters(engine: Engine, copies: list[Tensor]) -> None:
    """Fill this rank's fragments from ``copy_masters``; every rank calls it."""
    for fragment, copy in zip(engine.fragments, copies, strict=True):
        fragment.view().copy_(copy)
    engine.refresh()


def start_over(engine: Engine, parameters: Mapping[str, Tensor]) -> None:
    """Set masters to whole parameters and moments to zero, as before the first step; every rank calls it.

    Args:
        engine: An engine between steps. In fp16 the caller also resets its loss scale (``Engine.load_state``).
        parameters: Whole float32 parameters by name, the same on every rank.
    """
    for fragment in engine.fragments:
        values = parameters[fragment.parameter].reshape(-1)[fragment.start : fragment.start + fragment.numel]
        fragment.view().copy_(values)
        for moment in engine.optimizer.moments(fragment.flat):
            fragment.view(moment).zero_()
    engine.refresh()


def whole_masters(engine: Engine, world: World) -> dict[str, Tensor]:
    """Return the whole float32 parameters on rank 0, on the CPU, and an empty dictionary on the other ranks."""
    mine = [(f.parameter, f.start, copy) for f, copy in zip(engine.fragments, copy_masters(engine), strict=True)]
    by_rank: list[list[tuple[str, int, Tensor]]] | None = None
    if engine.is_replicated or world.size == 1:
        by_rank = [mine]
    else:
        by_rank = [[]] * world.size if world.is_main else None
        dist.gather_object(mine, by_rank, dst=0, group=world.control)
    if not world.is_main or by_rank is None:
        return {}
    # check_coverage has shown that the fragments cover every element, so nothing stays uninitialised.
    whole = {name: torch.empty(shape) for name, shape in engine.shapes.items()}
    for copies in by_rank:
        for name, start, values in copies:
            whole[name].view(-1)[start : start + values.numel()] = values
    return whole
