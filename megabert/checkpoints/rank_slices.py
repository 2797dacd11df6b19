"""Which pieces of which parameters a rank writes into a checkpoint."""

from typing import NamedTuple

from torch import Tensor

from megabert.checkpoints.format import KINDS, key_of
from megabert.distributed.process_group import World
from megabert.engine.engine import Engine


class Slice(NamedTuple):
    """Elements ``start`` to ``start + numel`` of a parameter, ``offset`` into one of this rank's fragments."""

    parameter: str
    start: int
    numel: int
    fragment: int
    offset: int


def slices_of(engine: Engine, world: World) -> list[Slice]:
    """Return what this rank writes: its fragments, or its share of each where every rank holds them whole."""
    pieces = []
    for index, fragment in enumerate(engine.fragments):
        if not engine.is_replicated:
            pieces.append(Slice(fragment.parameter, fragment.start, fragment.numel, index, 0))
            continue
        begin = fragment.numel * world.rank // world.size
        end = fragment.numel * (world.rank + 1) // world.size
        if begin < end:
            pieces.append(Slice(fragment.parameter, fragment.start + begin, end - begin, index, begin))
    return pieces


def stored_tensors(engine: Engine, pieces: list[Slice]) -> list[tuple[str, Tensor]]:
    """Return (key, view) of master and moments of every piece; nothing is copied."""
    tensors = []
    for piece in pieces:
        fragment = engine.fragments[piece.fragment]
        flats = (fragment.flat, *engine.optimizer.moments(fragment.flat))
        for kind, flat in zip(KINDS, flats, strict=True):
            view = fragment.view(flat).narrow(0, piece.offset, piece.numel)
            tensors.append((key_of(kind, piece.parameter, piece.start), view))
    return tensors
