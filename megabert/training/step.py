"""One optimizer step over a packed global batch."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from megabert.data.step_packer import StepBatch
from megabert.distributed.collectives import sum_over_ranks
from megabert.distributed.process_group import World
from megabert.engine.engine import Engine
from megabert.models.objectives import terms_of
from megabert.observability.logs import logger
from megabert.training.losses import Counts, Means, means_of, no_sums, sums_of, weighted_loss


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What one step computed."""

    losses: Means
    """Means over the global batch."""
    grad_norm: float | None
    """Gradient norm before clipping; None where the update was skipped."""

    @property
    def is_skipped(self) -> bool:
        """Whether there was no update, because the loss or a gradient was not finite."""
        return self.grad_norm is None


def train_step(
    engine: Engine, batch: StepBatch, world: World, *, computed: Callable[[], None] = lambda: None
) -> StepResult:
    """Accumulate the micro-steps of a global batch and update, unless something is not finite.

    The loss of each micro-batch is divided by the counts of the whole global batch, not by its own: so the gradients
    depend neither on the number of ranks nor on how instances are packed. DeepSpeed averages gradients over the W
    ranks, where a sum is wanted, hence a factor W in the loss.

    Args:
        engine: The sharded model and its optimizer, learning rate already set.
        batch: This rank's micro-batches, with the counts of the global batch.
        world: This rank among the others.
        computed: Called when this rank has done its own part, before it waits for the other ranks (ZeRO 0 and 1; above,
            ranks also wait for each other in each micro-step).

    Returns:
        Means over the global batch and the gradient norm before clipping.
    """
    terms = terms_of(engine.module)
    counts: Counts = {"masked": batch.num_masked, "instances": batch.num_instances, "tokens": batch.num_tokens}
    sums = no_sums(terms, world.device)
    # Every rank has as many micro-batches, some perhaps without instances: collectives have to pair up.
    for micro_batch in batch.micro_batches:
        output = engine.forward(micro_batch.to(world.device, non_blocking=True))
        engine.backward(weighted_loss(output, terms, counts=counts, world_size=world.size))
        sums += sums_of(output, terms)
    # Look for infinite and NaN gradients on this rank, by name, so that a log can say where they come from.
    bad_names = engine.nonfinite_gradients()
    computed()
    # One small collective sums the losses and the flag. One rank's bad gradient makes every rank skip the update.
    totals = sum_over_ranks(torch.cat([sums, sums.new_tensor([len(bad_names)])])).cpu()
    flagged, losses = bool(totals[-1]), means_of(totals[:-1], terms, counts)
    if flagged or not math.isfinite(losses.loss):
        _name_nonfinite(bad_names, losses, world)
        engine.discard_gradients()
        return StepResult(losses=losses, grad_norm=None)
    grad_norm = engine.step()
    if engine.step_was_skipped and world.is_main:
        logger.warning("step skipped: gradients overflowed while they were reduced over ranks")
    return StepResult(losses=losses, grad_norm=None if engine.step_was_skipped else grad_norm)


def _name_nonfinite(names: list[str], losses: Means, world: World) -> None:
    """Log which gradients of which ranks were not finite."""
    for rank, bad in enumerate(world.gather(names)):
        if bad and world.is_main:
            shown = ", ".join(bad[:5]) + (f" and {len(bad) - 5} more" if len(bad) > 5 else "")
            logger.warning("step skipped: gradients not finite on rank %d in %s", rank, shown)
    if world.is_main:
        logger.warning("step skipped: loss %s (masked-LM %s)", losses.loss, losses.values["mlm_loss"])
