"""One optimizer step over a packed global batch, and one validation.

A model's loss has one or more terms (masked LM, next sentence, replaced tokens), each a mean over its own count. Means
of micro-batches cannot be averaged, since micro-batches differ in size. So sums are added up, over micro-batches and
then over ranks, and divided once.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor

from megabert.data.batch import MicroBatch, sent_to
from megabert.data.loader import PackedLoader, StepTotals
from megabert.data.mixture import Mixture
from megabert.data.packing import MicroShape, RankShare
from megabert.data.step_packer import StepBatch, StepPacker, validation_batches
from megabert.distributed.process_group import World
from megabert.engine.engine import Engine, HostCopy
from megabert.models.bert import Count, PretrainingModel, PretrainingOutput, Term, terms_of
from megabert.models.electra import BINS
from megabert.observability.logs import logger
from megabert.optim import StepSettings
from megabert.settings.config.run import RunConfig
from megabert.tokens.shards.shard_set import ShardSet
from megabert.training.probes.minimal_pairs import describe_probes
from megabert.training.state import TrainerState

Counts = Mapping[Count, int]
"""The denominators of the terms: counts of a global batch, or of the held-out instances."""
Means = Mapping[str, float]
"""Means over these counts: ``loss`` (the objective, in nats), and each term's loss and its accuracy from 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """Losses and gradient norm of one step, alike on every rank."""

    losses: Means
    """Means over the global batch."""
    grad_norm: float | None
    """Gradient norm before clipping; None if the update was skipped."""

    @property
    def is_skipped(self) -> bool:
        """Whether there was no update, because the loss or a gradient was not finite."""
        return self.grad_norm is None


def agree_on_step(mine: StepTotals, world: World) -> StepTotals:
    """Agree on a step with the other ranks; the loader's thread calls it, on a process group of its own.

    Losses are divided by the sums of counts. The greatest number of micro-steps is everybody's, since collectives
    within a micro-step have to pair up; and one rank's request to stop stops all.
    """
    rows = [torch.empty(len(mine), dtype=torch.int64) for _ in range(world.size)]
    dist.all_gather(rows, torch.tensor(mine, dtype=torch.int64), group=world.loader)  # by gloo: no GPU waits
    masked, instances, micro_steps, stop = torch.stack(rows).T.tolist()
    return StepTotals(sum(masked), sum(instances), max(micro_steps), max(stop))


def open_loader(
    config: RunConfig, state: TrainerState, train: Mixture, *, shape: MicroShape, world: World
) -> PackedLoader:
    """Start the loader of the present phase at the present position.

    Args:
        config: Configuration of the run.
        state: State of the run, which names the phase and the positions.
        train: Training split of the phase's sources.
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
        global_batch_size=lambda number: phase.numbers_of(number - first),
        share=share,
        masking=lambda number: train.first.masking_in(phase, number - first),
        num_positions=config.model.max_position_embeddings if phase.position_offset == "random" else None,
    )
    agree = partial(agree_on_step, world=world)
    return PackedLoader(packer, positions=state.positions, first_number=state.batches, agree=agree)


def accumulate(engine: Engine, batch: StepBatch, world: World) -> Tensor:
    """Run forward and backward over this rank's micro-batches: its own part of a step.

    The loss of each micro-batch is divided by the counts of the whole global batch, not by its own: so the gradients
    depend neither on the number of ranks nor on how instances are packed. The engine averages gradients over the W
    ranks, where a sum is wanted, hence a factor W in the loss.

    At ZeRO 0 no other rank is waited for. At 1 and 2 the first forward pass waits for the other ranks' updated weights,
    and at 2 and 3 gradients are reduced in each micro-step.

    Args:
        engine: The sharded model and its optimizer.
        batch: This rank's micro-batches, with the counts of the global batch.
        world: This rank among the others.

    Returns:
        This rank's sums, for `update`.
    """
    terms, counts = terms_of(engine.module), counts_of(batch)
    sums = zero_sums(terms, world.device)
    # Every rank has the same number of micro-batches, some perhaps without instances: collectives have to pair up.
    for number, micro_batch in enumerate(batch.micro_batches, start=1):
        output = engine.forward(micro_batch.to(world.device))
        loss = weighted_loss(output, terms, counts=counts, world_size=world.size)
        engine.backward(loss, is_last=number == len(batch.micro_batches))
        sums += sums_of(output, terms)
    engine.wait_for_backward()
    return sums


def update(engine: Engine, batch: StepBatch, sums: Tensor, settings: StepSettings, world: World) -> StepResult:
    """Update the weights with the gradients of all ranks, unless something is not finite.

    Args:
        engine: The engine that has accumulated.
        batch: The batch, with the counts of the global batch.
        sums: Result of `accumulate`.
        settings: Learning rate and bias step.
        world: This rank among the others.

    Returns:
        Means over the global batch and the gradient norm before clipping.
    """
    # One small collective sums the losses and the gradient's squares. One rank's NaN makes every rank skip the update.
    result = engine.step(settings, sums)
    losses = means_of(result.totals, terms_of(engine.module), counts_of(batch))
    if result.grad_norm is None:
        _name_nonfinite(result.nonfinite, losses, world)
    return StepResult(losses=losses, grad_norm=result.grad_norm)


def validate(
    engine: Engine, held_out: Mixture, *, shape: MicroShape, max_instances: int, world: World
) -> dict[str, float]:
    """Score the first ``max_instances`` held-out instances, without dropout, each rank its share.

    Returns:
        The means as ``eval/*``, of the model's ``held_out_terms``; of several sources, each in its share of the
        instances but with one at least, also the means of each as ``eval/NAME/*``.
    """
    terms = cast(PretrainingModel, engine.module).held_out_terms
    sums = [
        _score(engine, source, terms, shape=shape, max_instances=count, world=world)
        for source, count in held_out.scored(max_instances)
    ]
    scored = {"": torch.stack(sums).sum(dim=0)}
    scored |= {f"{name}/": own for name, own in zip(held_out.names, sums, strict=True) if name}
    return {
        f"eval/{source}{name}": value
        for source, totals in scored.items()
        for name, value in means_of(totals[3:], terms, _counts_in(totals)).items()
    }


def _score(
    engine: Engine, shards: ShardSet, terms: Sequence[Term], *, shape: MicroShape, max_instances: int, world: World
) -> Tensor:
    """Return the sums over held-out instances of one source and all ranks: three counts, then the sums of the terms."""
    sums, counts_3 = zero_sums(terms, world.device), torch.zeros(3, dtype=torch.float64)
    share = RankShare(shape=shape, rank=world.rank, world_size=world.size, pad=world.device.type == "cuda")
    with engine.evaluating():
        for micro_batch in validation_batches(shards, share, max_instances=max_instances):
            output = engine.forward(micro_batch.to(world.device))
            sums += sums_of(output, terms)
            counts_3 += torch.tensor(list(counts_of(micro_batch).values()))  # on the host, which would wait for a copy
    # Counts travel with the sums: unlike a training batch, nobody knows the held-out instances of the other ranks.
    return HostCopy(world.sum_over_ranks(torch.cat([sent_to(world.device, counts_3), sums]))).wait()


def _counts_in(totals: Tensor) -> Counts:
    masked, instances, tokens = map(int, totals[:3].tolist())
    return {"masked": masked, "instances": instances, "tokens": tokens}


def counts_of(batch: StepBatch | MicroBatch) -> Counts:
    """Return the denominators of the terms, for a micro-batch or a global batch."""
    return {"masked": batch.num_masked, "instances": batch.num_instances, "tokens": batch.num_tokens}


def zero_sums(terms: Sequence[Term], device: torch.device) -> Tensor:
    """Return float64 zeros for ``sums_of`` to be added to: each term's loss and right answers, then the histogram."""
    bins = 2 * BINS if any(term.name == "rtd" for term in terms) else 0
    return torch.zeros(2 * len(terms) + bins, dtype=torch.float64, device=device)


def sums_of(output: PretrainingOutput, terms: Sequence[Term]) -> Tensor:
    """Return a micro-batch's sums as a vector."""
    parts = [part for term in terms for part in output.loss_and_correct(term)]
    vector = torch.stack([part.detach().double() for part in parts])
    return vector if output.rtd_histogram is None else torch.cat([vector, output.rtd_histogram.flatten().double()])


def weighted_loss(output: PretrainingOutput, terms: Sequence[Term], *, counts: Counts, world_size: int) -> Tensor:
    """Return the loss of a micro-batch, whose gradients the engine averages over ``world_size`` ranks."""
    # A term may have nothing to count (no masked position on any rank): then its mean is 0, not 0 / 0.
    loss = torch.zeros((), device=output.mlm_loss_sum.device)
    for term in terms:
        scale = term.weight * world_size / max(counts[term.per], 1)
        loss = loss + output.loss_and_correct(term)[0] * scale
    return loss


def means_of(totals: Tensor, terms: Sequence[Term], counts: Counts) -> Means:
    """Divide the sums over all micro-batches and ranks by the counts of the whole batch."""
    means = {"loss": 0.0}
    for term, (loss_sum, correct) in zip(terms, totals[: 2 * len(terms)].view(-1, 2).tolist(), strict=True):
        count = max(counts[term.per], 1)
        means["loss"] += term.weight * loss_sum / count
        means[f"{term.name}_loss"] = loss_sum / count
        if term.has_answers:
            means[f"{term.name}_accuracy"] = correct / count
    if len(totals) > 2 * len(terms):
        means["rtd_auc"] = area_under_curve(totals[2 * len(terms) :].view(2, BINS))
    return means


def area_under_curve(histogram: Tensor) -> float:
    """Return the area under the ROC curve: how probable it is that a replaced token has the higher logit.

    Args:
        histogram: Of shape (2, bins): original and replaced tokens by logit. Within a bin they count as tied.
    """
    original, replaced = histogram.double()
    pairs = float(original.sum() * replaced.sum())
    # The Mann-Whitney statistic: for each replaced token, the originals below it and half of those in its bin.
    below = original.cumsum(0) - original / 2
    return float((replaced * below).sum()) / pairs if pairs else 0.5


def _name_nonfinite(names: Sequence[str], losses: Means, world: World) -> None:
    """Log which gradients of which ranks were not finite."""
    by_rank = world.gather(list(names))
    if not world.is_main:
        return
    for rank, bad in enumerate(by_rank):
        if bad:
            shown = ", ".join(bad[:5]) + (f" and {len(bad) - 5} more" if len(bad) > 5 else "")
            logger.warning("step skipped: gradients not finite on rank %d in %s", rank, shown)
    if not any(by_rank) and math.isfinite(losses["loss"]):
        logger.warning("step skipped: gradients overflowed while they were reduced over ranks")
    logger.warning("step skipped: loss %s (masked-LM %s)", losses["loss"], losses["mlm_loss"])


def describe_scores(metrics: dict[str, float]) -> str:
    """Return the scores of a validation in one line."""
    parts = [f"masked-LM loss {metrics['eval/mlm_loss']:.4f}, accuracy {100 * metrics['eval/mlm_accuracy']:.2f}%"]
    if "eval/nsp_accuracy" in metrics:
        parts.append(f"next-sentence accuracy {100 * metrics['eval/nsp_accuracy']:.2f}%")
    if "eval/rtd_auc" in metrics:
        parts.append(f"discriminator loss {metrics['eval/rtd_loss']:.4f}, AUC {metrics['eval/rtd_auc']:.4f}")
    return "; ".join([*parts, *filter(None, [describe_probes(metrics)])])
