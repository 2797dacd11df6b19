"""The float32 masters in memory: kept aside, put back, filled from whole parameters, gathered into such."""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from megabert.distributed.process_group import World
from megabert.engine.engine import Engine


def copy_masters(engine: Engine) -> list[Tensor]:
    """Return copies of this rank's fragments, on the CPU, in the order of the fragment table."""
    return [fragment.view().to("cpu", copy=True) for fragment in engine.fragments]


def put_back_masters(engine: Engine, copies: list[Tensor]) -> None:
    """Fill this rank's fragments from ``copy_masters``; every rank calls it."""
    for fragment, copy in zip(engine.fragments, copies, strict=True):
        fragment.view().copy_(copy)
    engine.refresh()


def start_over(engine: Engine, parameters: Mapping[str, Tensor]) -> None:
    """Bring an engine to the first step: masters from whole parameters, no moments; every rank calls it.

    Args:
        engine: Between steps; in fp16 its loss scale is the caller's to set back (``Engine.load_state``).
        parameters: Whole, float32, by name, the same on every rank.
    """
    for fragment in engine.fragments:
        piece = parameters[fragment.parameter].reshape(-1)[fragment.start : fragment.start + fragment.numel]
        fragment.view().copy_(piece)
        for moment in engine.optimizer.moments(fragment.flat):
            fragment.view(moment).zero_()
    engine.refresh()


def whole_masters(engine: Engine, world: World) -> dict[str, Tensor]:
    """Return every parameter whole, float32 on the CPU, on rank 0; an empty dictionary on the others."""
    mine = [(f.parameter, f.start, copy) for f, copy in zip(engine.fragments, copy_masters(engine), strict=True)]
    everyone: list[list[tuple[str, int, Tensor]]] | None = None
    if engine.is_replicated or world.size == 1:
        everyone = [mine]
    else:
        everyone = [[]] * world.size if world.is_main else None
        dist.gather_object(mine, everyone, dst=0, group=world.control)
    if not world.is_main or everyone is None:
        return {}
    whole = {name: torch.empty(shape) for name, shape in engine.shapes.items()}
    for pieces in everyone:
        for name, start, piece in pieces:
            whole[name].view(-1)[start : start + piece.numel()] = piece
    return whole
