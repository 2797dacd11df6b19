"""The loader of a phase: its share of each batch, its masks, and where in the data it begins."""

from functools import partial

from megabert.data.loader import PackedLoader
from megabert.data.packing import MicroShape
from megabert.data.step_packer import RankShare, StepPacker
from megabert.distributed.process_group import World
from megabert.settings.config.run import RunConfig
from megabert.tokens.shards.shard_set import ShardSet
from megabert.training.state import TrainerState
from megabert.training.step import agree_on_step


def open_loader(
    config: RunConfig, state: TrainerState, train: ShardSet, *, shape: MicroShape, world: World
) -> PackedLoader:
    """Start the loader of the present phase at the present position.

    Args:
        config: Configuration of the run.
        state: State of the run, which names the phase and the position.
        train: Training split of the phase.
        shape: The greatest micro-batch of the phase.
        world: This rank and the others.
    """
    phase = config.phases[state.phase]
    is_gpu = world.device.type == "cuda"
    share = RankShare(shape=shape, rank=world.rank, world_size=world.size, pad=is_gpu, pin=is_gpu)
    # The ramp of the batch and of the masked share counts the batches of this phase.
    first = state.first_batch
    packer = StepPacker(
        train,
        seed=config.seed,
        global_batch_size=lambda number: phase.batch_size(number - first),
        share=share,
        masking=lambda number: train.masking_in(phase, number - first),
        num_positions=config.model.max_position_embeddings if phase.position_offset == "random" else None,
    )
    agree = partial(agree_on_step, world=world)
    return PackedLoader(packer, position=state.position, first_number=state.batches, agree=agree)
