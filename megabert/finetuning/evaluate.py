"""One pass over an evaluation set: logits of every item, predictions, metrics."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megabert.data.batch import MicroBatch
from megabert.finetuning.batches import Batcher
from megabert.finetuning.families import Example, Family, Prediction


@dataclass(frozen=True, kw_only=True)
class EvaluationSet:
    """Examples, encoded and distributed over the ranks."""

    name: str
    """Stem of the set's file, or ``held_out``."""
    examples: Sequence[Example]
    batcher: Batcher


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The result of one pass over a set."""

    predictions: list[Prediction]
    """One prediction an example, as it is written to a file."""
    metrics: dict[str, float]


Forward = Callable[[MicroBatch, Tensor | None], Tensor]
"""Takes packed sequences and the labelled positions, if the task has any; returns logits."""
Gather = Callable[[Any], list[Any]]
"""Takes this rank's value and returns those of all ranks."""


def evaluate(
    forward: Forward,
    family: Family,
    data: EvaluationSet,
    *,
    device: torch.device,
    gather: Gather = lambda value: [value],
) -> Evaluation:
    """Score a set; every rank calls it, with a model in evaluation mode."""
    logits = item_logits(forward, data, device=device, gather=gather)
    predictions = family.predict(logits, data.examples, data.batcher.features)
    return Evaluation(predictions=predictions, metrics=family.score(predictions, data.examples))


def item_logits(forward: Forward, data: EvaluationSet, *, device: torch.device, gather: Gather) -> list[NDArray]:
    """Return each item's logits, float32 of shape (rows, outputs), in the order of the items."""
    features = data.batcher.features
    mine: list[tuple[NDArray, NDArray]] = []
    for batch in data.batcher.all():
        on_device = batch.to(device)
        logits = forward(on_device.inputs, on_device.label_positions_M).detach().float().cpu().numpy()
        mine.append((batch.items, logits[: features.rows[batch.items].sum()]))
    # Packing mixes the items: put each one's rows back where the item belongs.
    logits_of_items: list[NDArray] = [np.empty(0)] * len(features)
    for parts in gather(mine):
        for items, logits in parts:
            if len(items):
                ends = np.cumsum(features.rows[items])[:-1]
                for item, rows in zip(items, np.split(logits, ends), strict=True):
                    logits_of_items[item] = rows
    return logits_of_items


def mean_score(metrics: dict[str, float], names: Sequence[str]) -> float:
    """Return the mean of the metrics that pick the best weights; tags that are not BIO have their accuracy alone."""
    values = [metrics[name] for name in names if name in metrics] or [metrics["accuracy"]]
    return sum(values) / len(values)
