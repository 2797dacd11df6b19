"""First values of the rows of the position table that a longer phase is the first to read.

No sequence has reached these rows: they are still random, and their moments are zero. ``phases.N.new_positions=tile``
fills them with trained rows before the phase begins. Their moments are copied as well, so that a new row continues as
the row that it was copied from would have: Adam's denominator has the size of real gradients. With moments of zero
AdamW's first updates of the new rows would be several times too large; under LAMB it hardly matters
(docs/decisions.md).

A rank's fragments begin and end anywhere in the table, so the trained rows are gathered whole, on every rank, and each
rank takes its own elements of the new rows from there.

A phase begins in the process that ended the phase before, in a start that finds the checkpoint of that end, or in a
rollback to it. Each does this. Checkpoints of the new phase hold the new rows, so that a start from one does not.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from megabert.checkpoints.saving import stored_tensors
from megabert.data.mixture import PhaseShards
from megabert.distributed.process_group import World
from megabert.engine.engine import Engine
from megabert.models.convert import POSITIONS
from megabert.observability.logs import logger
from megabert.optim import Fragment
from megabert.settings.config.run import RunConfig


def fill_new_positions(engine: Engine, world: World, config: RunConfig, earlier: Sequence[PhaseShards]) -> None:
    """Fill the rows of positions that a phase is the first to read, if it says so; every rank calls it.

    With ``init_from`` there are none: its source has trained them all.

    Args:
        engine: The engine, at the end of the phase before.
        world: All ranks.
        config: Configuration of the run.
        earlier: Instances of each phase before the phase that begins.
    """
    phase = config.phases[len(earlier)]
    if phase.new_positions == "keep" or config.init_from is not None:
        return
    num_trained = max(shards.train.first.metadata.max_seq_length for shards in earlier)
    tile_rows(engine, world, POSITIONS, num_trained=num_trained, stop=phase.max_seq_length)
    if world.is_main:
        end = phase.max_seq_length
        rows = (num_trained, end - 1, min(num_trained - 2, end - num_trained))
        logger.info("positions %d to %d begin as copies of positions 1 to %d, which are trained", *rows)


@torch.no_grad()
def tile_rows(engine: Engine, world: World, parameter: str, *, num_trained: int, stop: int) -> None:
    """Fill rows ``num_trained`` to ``stop - 1`` with the trained rows between the first and the last, over and over.

    The first row is [CLS]'s in every instance, and the last one [SEP]'s in every instance of full length. Masters,
    moments and, if there is one, their average are all filled, with the same bits on any number of ranks and at any
    ZeRO stage. Every rank calls it, between steps.

    Args:
        engine: The engine.
        world: All ranks.
        parameter: Name of the table, of shape (rows, width).
        num_trained: Rows that were trained, 3 or more.
        stop: One past the last row to fill.
    """
    width = engine.shapes[parameter][1]
    first, end = num_trained * width, stop * width
    mine = [fragment for fragment in engine.fragments if fragment.parameter == parameter]
    trained = _gather(engine, world, mine, first)
    # Element e of the new rows is element ``source_E[e]`` of the trained ones.
    inner_rows = torch.arange(stop - num_trained) % (num_trained - 2) + 1
    source_E = (inner_rows[:, None] * width + torch.arange(width)).view(-1)
    for fragment in mine:
        here = slice(max(fragment.start, first), min(fragment.start + fragment.numel, end))
        if here.start < here.stop:
            for values, (_, tensor) in zip(trained, stored_tensors(engine, fragment.flat), strict=True):
                filled = values[source_E[here.start - first : here.stop - first]]
                fragment.view(tensor)[here.start - fragment.start : here.stop - fragment.start].copy_(filled)
    engine.refresh()


def _gather(engine: Engine, world: World, mine: Sequence[Fragment], numel: int) -> Tensor:
    """Return the table's first elements, on the CPU: a row of masters, one for each moment, and one of averages."""
    kinds = 1 + len(engine.optimizer.state_names) + (engine.average is not None)
    # An element is on one rank, and 0 on the others. Its bits are summed as a whole number, so that -0.0 stays -0.0.
    bits = torch.zeros(kinds, numel, dtype=torch.int32)
    for fragment in mine:
        here = slice(fragment.start, min(fragment.start + fragment.numel, numel))
        if here.start < here.stop:
            for row, (_, tensor) in zip(bits, stored_tensors(engine, fragment.flat), strict=True):
                row[here] = fragment.view(tensor)[: here.stop - here.start].cpu().view(torch.int32)  # waits
    if not engine.is_replicated:
        dist.all_reduce(bits, group=world.control)  # by gloo, on the CPU; once per phase
    return bits.view(torch.float32)
