"""Held-out loss and accuracy."""

import torch

from megabert.data.loader import validation_batches
from megabert.data.packing import MicroShape
from megabert.data.shard_set import ShardSet
from megabert.distributed.engine import Engine
from megabert.distributed.process_group import World
from megabert.training.collectives import sum_over_ranks
from megabert.training.step import LossSums


def validate(
    engine: Engine, shards: ShardSet, *, shape: MicroShape, max_instances: int, world: World
) -> dict[str, float]:
    """Score the first ``max_instances`` held-out instances, without dropout, each rank its share.

    Returns:
        ``eval/*`` tags: losses in nats, accuracies as shares of 1.
    """
    sums = torch.zeros(6, dtype=torch.float64, device=world.device)
    with engine.evaluating(), torch.no_grad():
        for micro_batch in validation_batches(
            shards,
            shape=shape,
            rank=world.rank,
            world_size=world.size,
            max_instances=max_instances,
            pad=world.device.type == "cuda",
        ):
            output = engine.forward(micro_batch.to(world.device))
            parts = (output.mlm_loss_sum, output.nsp_loss_sum, output.mlm_correct, output.nsp_correct)
            sums[:4] += torch.stack([part.double() for part in parts])
            sums[4] += micro_batch.num_masked
            sums[5] += micro_batch.num_instances
    *totals, masked, instances = sum_over_ranks(sums).tolist()
    losses = LossSums.from_sums(totals, masked=int(masked), instances=int(instances))
    return {
        "eval/loss": losses.loss,
        "eval/mlm_loss": losses.mlm_loss,
        "eval/mlm_accuracy": losses.mlm_accuracy,
        "eval/nsp_loss": losses.nsp_loss,
        "eval/nsp_accuracy": losses.nsp_accuracy,
    }
