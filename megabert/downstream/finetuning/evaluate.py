"""Scoring: one pass over a set with the present weights."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megabert.data.batch import MicroBatch
from megabert.distributed.process_group import World
from megabert.downstream.finetuning.batches import Features
from megabert.downstream.finetuning.task_kinds import Example, Prediction, TaskKind
from megabert.engine.engine import HostCopy
from megabert.foundation.errors import CheckpointError
from megabert.observability.progress import Progress


class NonFiniteOutputs(CheckpointError):
    """The outputs of a model are NaN or infinite. Every rank of a world has all of them, and raises it alike."""


class EvaluationSet(NamedTuple):
    """A set to score."""

    name: str
    """Stem of the set's file, or ``held_out``."""
    examples: Sequence[Example]
    features: Features
    """The examples, encoded."""


class Evaluation(NamedTuple):
    """The result of one pass over a set."""

    predictions: list[Prediction]
    """One prediction per example, as it is written to a file."""
    metrics: dict[str, float]


Forward = Callable[[MicroBatch, Tensor | None], Tensor]
"""Takes packed sequences and the labelled positions, if the task has any; returns logits."""


def evaluate(
    forward: Forward, kind: TaskKind, data: EvaluationSet, *, device: torch.device, world: World | None = None
) -> Evaluation:
    """Score a set; every rank of a world calls it, with a model in evaluation mode."""
    logits_of_items = compute_logits(forward, kind, data.features, title=data.name, device=device, world=world)
    predictions = kind.predict(logits_of_items, data.examples, data.features)
    return Evaluation(predictions=predictions, metrics=kind.score(predictions, data.examples))


def compute_logits(
    forward: Forward,
    kind: TaskKind,
    features: Features,
    *,
    title: str,
    device: torch.device,
    world: World | None = None,
) -> list[NDArray]:
    """Return the logits of each item, of shape (rows, outputs); every rank of a world calls it.

    Args:
        forward: The model, in evaluation mode.
        kind: The task.
        features: The encoded examples.
        title: Their name in a progress bar and in an error.
        device: Where the model is.
        world: The ranks that share the items; None for one process.

    Raises:
        NonFiniteOutputs: The logits are not finite.
    """
    rank, ranks = (world.rank, world.size) if world else (0, 1)
    # Each rank computes the logits of its share of the items.
    mine: list[tuple[NDArray, HostCopy]] = []
    with Progress(title=title, total=len(features), unit="example", is_main=rank == 0) as progress:
        for batch in kind.batcher(features, rank=rank, world_size=ranks).all():
            on_device = batch.to(device)
            output = forward(on_device.inputs, on_device.label_positions_M)
            # The copy is under way while the next micro-batch is launched; the host waits after the last one.
            mine.append((batch.items, HostCopy(output.detach().float())))
            progress.advance(len(batch.items) * ranks, is_reported=False)
    # Packing mixes the items: put the rows of each, of shape (rows, outputs), back where the item belongs.
    logits_of_items: list[NDArray] = [np.empty(0)] * len(features)
    arrived = [(items, copy.wait().numpy()[: features.rows[items].sum()]) for items, copy in mine]
    for parts in world.gather(arrived) if world else [arrived]:
        for items, logits in parts:
            if len(items):
                ends = np.cumsum(features.rows[items])[:-1]
                for item, rows in zip(items, np.split(logits, ends), strict=True):
                    logits_of_items[item] = rows
    if not all(np.isfinite(rows).all() for rows in logits_of_items):
        raise NonFiniteOutputs(
            f"{title}: the model's outputs are NaN or infinite: its weights are damaged, or have diverged. Take "
            "another model, or a lower learning_rate."
        )
    return logits_of_items
