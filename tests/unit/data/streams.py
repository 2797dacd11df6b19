"""Loaders of small shards, for the tests of what they deliver."""

from megabert.data.loader import PackedLoader
from megabert.data.mixture import Mixture
from megabert.data.packing import RankShare, shape_for
from megabert.data.step_packer import StepPacker

SEED = 5


def shape_of(shards, global_batch_size, world_size=1, budget=256):
    return shape_for(
        shards.statistics, global_batch_size=global_batch_size, world_size=world_size, micro_batch_tokens=budget
    )


def loader_of(
    shards, *, global_batch_size=50, world_size=1, rank=0, budget=256, pad=False, num_positions=None, **options
):
    shape = shape_of(shards, global_batch_size, world_size, budget)
    share = RankShare(shape=shape, rank=rank, world_size=world_size, pad=pad)
    options.setdefault("num_steps", 4)
    packer = StepPacker(
        Mixture((shards,)), seed=SEED, global_batch_size=global_batch_size, share=share, num_positions=num_positions
    )
    return PackedLoader(packer, **options)


def steps_of(shards, **options):
    with loader_of(shards, **options) as loader:
        return list(loader)
