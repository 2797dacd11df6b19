"""Sums over micro-batches, and the means over a global batch that they add up to.

A model's loss has one or more terms (masked LM, next sentence, replaced tokens), each a mean over its own count. Means
of micro-batches cannot be averaged, since micro-batches differ in size. So sums are added up, over micro-batches and
then over ranks, and divided once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from megabert.models.electra import BINS
from megabert.models.objectives import Count, PretrainingOutput, Term

Terms = Sequence[Term]
Counts = Mapping[Count, int]
"""What the terms are means over: counts of a global batch, or of the held-out instances."""


@dataclass(frozen=True)
class Means:
    """Means over a global batch by name: ``loss``, and for each term its loss in nats and its accuracy from 0 to 1."""

    values: Mapping[str, float]

    @property
    def loss(self) -> float:
        """The objective, in nats."""
        return self.values["loss"]

    def tags(self, prefix: str) -> dict[str, float]:
        """Return the means as ``train/...`` or ``eval/...``."""
        return {f"{prefix}/{name}": value for name, value in self.values.items()}


def no_sums(terms: Terms, device: torch.device) -> Tensor:
    """Return float64 zeros for ``sums_of`` to be added to: each term's loss and right answers, then the histogram."""
    bins = 2 * BINS if any(term.name == "rtd" for term in terms) else 0
    return torch.zeros(2 * len(terms) + bins, dtype=torch.float64, device=device)


def sums_of(output: PretrainingOutput, terms: Terms) -> Tensor:
    """Return a micro-batch's sums as a vector."""
    parts = [part for term in terms for part in output.loss_and_correct(term)]
    vector = torch.stack([part.detach().double() for part in parts])
    return vector if output.rtd_histogram is None else torch.cat([vector, output.rtd_histogram.flatten().double()])


def weighted_loss(output: PretrainingOutput, terms: Terms, *, counts: Counts, world_size: int) -> Tensor:
    """Return the loss of a micro-batch, whose gradients DeepSpeed averages over ``world_size`` ranks."""
    loss = torch.zeros((), device=output.mlm_loss_sum.device)
    for term in terms:
        scale = term.weight * world_size / max(counts[term.per], 1)
        loss = loss + output.loss_and_correct(term)[0] * scale
    return loss


def means_of(totals: Tensor, terms: Terms, counts: Counts) -> Means:
    """Divide the sums over all micro-batches and ranks by the counts of the whole batch."""
    values = {"loss": 0.0}
    for term, (loss_sum, correct) in zip(terms, totals[: 2 * len(terms)].view(-1, 2).tolist(), strict=True):
        count = max(counts[term.per], 1)
        values["loss"] += term.weight * loss_sum / count
        values[f"{term.name}_loss"] = loss_sum / count
        values[f"{term.name}_accuracy"] = correct / count
    if len(totals) > 2 * len(terms):
        values["rtd_auc"] = area_under_curve(totals[2 * len(terms) :].view(2, BINS))
    return Means(values)


def area_under_curve(histogram: Tensor) -> float:
    """Return the area under the ROC curve: how probable it is that a replaced token has the higher logit.

    Args:
        histogram: Of shape (2, bins): original and replaced tokens by logit. Within a bin they count as tied.
    """
    original, replaced = histogram.double()
    pairs = float(original.sum() * replaced.sum())
    below = original.cumsum(0) - original / 2
    return float((replaced * below).sum()) / pairs if pairs else 0.5
