"""Loss and accuracy on held-out instances."""

import torch

from megabert.data import MicroShape, RankShare, validation_batches
from megabert.data.shard_set import ShardSet
from megabert.distributed.collectives import sum_over_ranks
from megabert.distributed.process_group import World
from megabert.engine.engine import Engine
from megabert.models.objectives import terms_of
from megabert.training.losses import Counts, means_of, no_sums, sums_of


def validate(
    engine: Engine, shards: ShardSet, *, shape: MicroShape, max_instances: int, world: World
) -> dict[str, float]:
    """Score the first ``max_instances`` held-out instances, without dropout, each rank its share.

    Returns:
        ``eval/*`` tags: losses in nats, accuracies as shares of 1.
    """
    terms = terms_of(engine.module)
    sums, counts_3 = no_sums(terms, world.device), torch.zeros(3, dtype=torch.float64, device=world.device)
    share = RankShare(shape=shape, rank=world.rank, world_size=world.size, pad=world.device.type == "cuda")
    with engine.evaluating(), torch.no_grad():
        for micro_batch in validation_batches(shards, share, max_instances=max_instances):
            output = engine.forward(micro_batch.to(world.device))
            sums += sums_of(output, terms)
            sizes = (micro_batch.num_masked, micro_batch.num_instances, micro_batch.num_tokens)
            counts_3 += counts_3.new_tensor(sizes)
    totals = sum_over_ranks(torch.cat([counts_3, sums])).cpu()
    masked, instances, tokens = map(int, totals[:3].tolist())
    counts: Counts = {"masked": masked, "instances": instances, "tokens": tokens}
    return means_of(totals[3:], terms, counts).tags("eval")
