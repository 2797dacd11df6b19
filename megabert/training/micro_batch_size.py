"""The tokens of a micro-step: ``micro_batch_tokens: auto`` finds the largest number that fits, once.

Large micro-batches keep a GPU busy. How a global batch is divided into them changes neither loss nor gradients, only
speed, so that the number can be found by trying: forward and backward with powers of two, from a large one downwards,
until no rank runs out of memory. The result is stored with the run and used again until something that it depends on
changes.
"""

from collections.abc import Callable
from functools import partial

import torch

from megabert.data.batch import probe_batch
from megabert.distributed.process_group import World
from megabert.engine.engine import DTYPES
from megabert.foundation.errors import ConfigError
from megabert.models.bert import PretrainingModel
from megabert.models.matrices import layer_matrices
from megabert.observability.logs import logger
from megabert.ops.backend import disproved
from megabert.settings.config.phase import PhaseConfig
from megabert.settings.config.run import MOMENTS
from megabert.tokens.shards.folder import InstanceStatistics
from megabert.training.first_budget import first_budget
from megabert.training.run.start import RunInputs
from megabert.training.state import MicroBatchTokens
from megabert.training.step import counts_of, weighted_loss


def choose_micro_batch_tokens(
    model: PretrainingModel, inputs: RunInputs, *, stored: MicroBatchTokens, world: World
) -> MicroBatchTokens:
    """Return the size of each phase's micro-batches: as set, as stored for the same case, or the largest that fits.

    Raises:
        ConfigError: One instance of full length does not fit.
    """
    config = inputs.config
    if config.micro_batch_tokens != "auto":
        return MicroBatchTokens(tokens=tuple(config.micro_batch_tokens for _ in config.phases))
    # A resumed run keeps its budgets, so that it packs the batches as before; on another machine it searches again.
    # Ranks decide alike, though one may have another kind of GPU.
    found_for = "; ".join(sorted(set(world.gather(_case(inputs, world)))))
    if stored.found_for == found_for and len(stored.tokens) == len(config.phases):
        return stored
    budgets = []
    for data, phase in zip(inputs.statistics, config.phases, strict=True):
        attempt = partial(_try_micro_step, model, inputs, world, data, phase)
        share = phase.global_batch_size * data.tokens // (data.rows * world.size)
        budgets.append(find_micro_batch_tokens(attempt, share=share, floor=data.max_seq_length, world=world))
    return MicroBatchTokens(tokens=tuple(budgets), found_for=found_for)


def _case(inputs: RunInputs, world: World) -> str:
    """Describe everything that a rank's memory and its share of a batch depend on."""
    config = inputs.config
    batches = [
        f"{phase.global_batch_size} x {data.max_seq_length} masked {data.masked_tokens / data.tokens:.3f}"
        for data, phase in zip(inputs.statistics, config.phases, strict=True)
    ]
    return ", ".join(
        [
            torch.cuda.get_device_name() if world.device.type == "cuda" else "cpu",
            f"{world.size} ranks",
            f"ZeRO-{inputs.zero_stage}",
            config.precision,
            "activation checkpointing" if config.activation_checkpointing else "all activations",
            *(["average"] if config.average.decay is not None else []),
            *(["z-loss"] if config.z_loss else []),
            *(f"{op} {backend}" for op, backend in config.ops.backends.items()),
            *disproved(),
            *batches,
        ]
    )


def find_micro_batch_tokens(attempt: Callable[[int], None], *, share: int, floor: int, world: World) -> int:
    """Return the largest number of tokens, from the device's first try downwards, that every rank can hold.

    Args:
        attempt: Runs a forward and backward pass of that many tokens; raises ``torch.OutOfMemoryError``.
        share: Tokens that a rank has to do in a step: no budget needs to be larger.
        floor: The longest instance; a smaller budget cannot be.
        world: Ranks, which all take the smallest number that any of them finds.

    Raises:
        ConfigError: One instance of full length does not fit either.
    """
    budget = first_budget(world.device.type, share=share, floor=floor)
    while not _fits(attempt, budget, world):
        if budget == floor:
            raise ConfigError(
                f"micro_batch_tokens: one instance of {floor} tokens does not fit into the device's memory. Take a "
                "smaller model, shorter sequences, --activation_checkpointing true, or a higher ZeRO stage (--engine).",
                see="memory-runs-out",
            )
        budget = max(budget // 2, floor)
        logger.info("micro_batch_tokens: out of memory, trying %d", budget)
    return budget


def _fits(attempt: Callable[[int], None], budget: int, world: World) -> bool:
    """Try a budget; return whether every rank could hold it."""
    try:
        attempt(budget)
        fits = True
    except torch.OutOfMemoryError:
        fits = False
    # The fragments that the failed try has left in the cache would make the next, smaller one fail as well.
    if world.device.type == "cuda":
        torch.cuda.empty_cache()
    return all(world.gather(fits))


def _try_micro_step(
    model: PretrainingModel, inputs: RunInputs, world: World, data: InstanceStatistics, phase: PhaseConfig, tokens: int
) -> None:
    """Run forward and backward as a training step would; raises ``torch.OutOfMemoryError`` on a GPU that is too small.

    Optimizer and engine do not exist yet. Their memory is set aside as one block while the trial runs.
    """
    if world.device.type == "cpu":
        return
    parameters = sum(parameter.numel() for parameter in model.parameters())
    shards = world.size if inputs.zero_stage else 1
    # ZeRO shards master weights and optimizer state over the ranks from stage 1 on.
    matrices = layer_matrices(model) if inputs.config.optimizer.name == "muon" else {}  # which have one moment less
    copies = 1 + len(MOMENTS) + (inputs.config.average.decay is not None)
    sharded = parameters * copies - sum(model.get_parameter(name).numel() for name in matrices)
    aside = parameters * 4 + sharded * 4 // shards  # float32: the gradient, and these
    ballast = torch.empty(aside, dtype=torch.uint8, device=world.device)
    trial = inputs.build_model().to(world.device, DTYPES[inputs.config.precision])
    trial.begin_phase(phase)
    share = data.masked_tokens / data.tokens
    batch = probe_batch(tokens=tokens, length=data.max_seq_length, masked_share=share).to(world.device)
    output = trial(batch)
    weighted_loss(output, trial.terms, counts=counts_of(batch), world_size=1).backward()
    del trial, output, ballast  # before the next try asks for memory
