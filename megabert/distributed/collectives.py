"""Collectives of the training step, on top of a world's process groups."""

import torch
import torch.distributed as dist

from megabert.data.loader import Agree, StepTotals
from megabert.distributed.process_group import World


def agreement(world: World) -> Agree:
    """Return the function with which the loader thread agrees on a step with the other ranks."""

    def agree(mine: StepTotals) -> StepTotals:
        rows = [torch.empty(len(mine), dtype=torch.int64) for _ in range(world.size)]
        dist.all_gather(rows, torch.tensor(mine, dtype=torch.int64), group=world.loader)
        masked, instances, micro_steps, stop = torch.stack(rows).T.tolist()
        return StepTotals(sum(masked), sum(instances), max(micro_steps), max(stop))

    return agree


def sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """Sum a small tensor over the ranks, in place, on its device."""
    dist.all_reduce(values)
    return values
