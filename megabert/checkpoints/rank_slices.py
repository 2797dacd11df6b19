"""Which slices of which parameters a rank writes into a checkpoint."""

from typing import NamedTuple

from torch import Tensor

from megabert.checkpoints.format import KINDS, key_of
from megabert.distributed.process_group import World
from megabert.engine.engine import Engine


class Slice(NamedTuple):
    """Elements ``start`` to ``start + numel`` of a parameter, which one rank writes."""

    parameter: str
    start: int
    numel: int
    fragment: int
    """Index of the fragment, in the engine's table, that holds them."""
    offset: int
    """First element within that fragment."""


def slices_of(engine: Engine, world: World) -> list[Slice]:
    """Return what this rank writes.

    Under ZeRO the fragments of all ranks already are a partition of the model, so each rank writes its own. At stage 0
    every rank holds everything; each writes an equal share of every parameter, so that all disks and hosts take part.
    """
    slices = []
    for index, fragment in enumerate(engine.fragments):
        first, stop = 0, fragment.numel
        if engine.is_replicated:
            first = fragment.numel * world.rank // world.size
            stop = fragment.numel * (world.rank + 1) // world.size
        if first < stop:
            slices.append(Slice(fragment.parameter, fragment.start + first, stop - first, index, first))
    return slices


def stored_tensors(engine: Engine, slices: list[Slice]) -> list[tuple[str, Tensor]]:
    """Return key and view of the master and both moments of every slice; nothing is copied."""
    tensors = []
    for part in slices:
        fragment = engine.fragments[part.fragment]
        flats = (fragment.flat, *engine.optimizer.moments(fragment.flat))
        for kind, flat in zip(KINDS, flats, strict=True):
            view = fragment.view(flat).narrow(0, part.offset, part.numel)
            tensors.append((key_of(kind, part.parameter, part.start), view))
    return tensors
