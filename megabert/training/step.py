"""One optimizer step over a packed global batch, and the sums that describe it."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from megabert.data.loader import StepBatch
from megabert.distributed.engine import Engine
from megabert.distributed.process_group import World
from megabert.observability.logs import logger
from megabert.training.collectives import sum_over_ranks


@dataclass(frozen=True, kw_only=True)
class LossSums:
    """Means over a global batch (or over the held-out instances)."""

    mlm_loss: float
    nsp_loss: float
    mlm_accuracy: float
    nsp_accuracy: float

    @property
    def loss(self) -> float:
        """The objective: masked-LM loss plus next-sentence loss, in nats."""
        return self.mlm_loss + self.nsp_loss

    @classmethod
    def from_sums(cls, sums: list[float], *, masked: int, instances: int) -> "LossSums":
        """Divide the sums (masked-LM loss, next-sentence loss, both counts correct) by their counts."""
        masked, instances = max(masked, 1), max(instances, 1)
        return cls(
            mlm_loss=sums[0] / masked,
            nsp_loss=sums[1] / instances,
            mlm_accuracy=sums[2] / masked,
            nsp_accuracy=sums[3] / instances,
        )


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """Outcome of one step; ``grad_norm`` is None where the update was skipped."""

    losses: LossSums
    grad_norm: float | None


def train_step(
    engine: Engine, batch: StepBatch, world: World, *, computed: Callable[[], None] = lambda: None
) -> StepResult:
    """Accumulate the micro-steps of a global batch and update, unless something is not finite.

    The loss is normalised over the global batch, so gradients depend neither on the number of ranks nor on packing;
    DeepSpeed averages over the W ranks, hence the factor W.

    Args:
        engine: The sharded model and its optimizer, learning rate already set.
        batch: This rank's micro-batches, with the counts of the global batch.
        world: Ranks.
        computed: Called when this rank's own part is done, before it waits for the others (ZeRO 0 and 1; above, ranks
            also wait for each other in each micro-step).

    Returns:
        Means over the global batch and the gradient norm before clipping.
    """
    mlm_scale = world.size / max(batch.num_masked, 1)
    nsp_scale = world.size / max(batch.num_instances, 1)
    sums = torch.zeros(5, dtype=torch.float64, device=world.device)
    for micro_batch in batch.micro_batches:
        output = engine.forward(micro_batch.to(world.device, non_blocking=True))
        loss = output.mlm_loss_sum * mlm_scale + output.nsp_loss_sum * nsp_scale
        engine.backward(loss)
        parts = (output.mlm_loss_sum, output.nsp_loss_sum, output.mlm_correct, output.nsp_correct)
        sums[:4] += torch.stack([part.detach().double() for part in parts])
    bad_names = engine.nonfinite_gradients()
    sums[4] = len(bad_names)
    computed()
    # A global tensor may be flagged on one rank only: all ranks decide alike.
    *totals, flagged = sum_over_ranks(sums).tolist()
    losses = LossSums.from_sums(totals, masked=batch.num_masked, instances=batch.num_instances)
    if flagged or not math.isfinite(losses.loss):
        _name_nonfinite(bad_names, losses, world)
        engine.discard_gradients()
        return StepResult(losses=losses, grad_norm=None)
    grad_norm = engine.step()
    if engine.step_was_skipped and world.is_main:
        logger.warning("step skipped: gradients overflowed while they were reduced over ranks")
    return StepResult(losses=losses, grad_norm=None if engine.step_was_skipped else grad_norm)


def _name_nonfinite(names: list[str], losses: LossSums, world: World) -> None:
    for rank, found in enumerate(world.gather(names)):
        if found and world.is_main:
            shown = ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
            logger.warning("step skipped: gradients not finite on rank %d in %s", rank, shown)
    if world.is_main:
        logger.warning("step skipped: loss %s (masked-LM %s)", losses.loss, losses.mlm_loss)
