"""From features to packed micro-batches: steps of training, and one pass of evaluation."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megabert.data.batch import BatchFormat, MicroBatch, Piece, assemble, instance_seeds
from megabert.data.packing import MicroShape, plan
from megabert.data.permutation import EpochOrder
from megabert.finetuning.features import Features


@dataclass(frozen=True, eq=False)
class TaskBatch:
    """One rank's micro-batch, and what its items are."""

    inputs: MicroBatch
    scores: Tensor | None
    """Regression: float32 targets, one an item."""
    items: NDArray[np.int64]
    """Places of the items in the features."""


@dataclass(frozen=True, kw_only=True)
class Batcher:
    """Deals items to ranks and micro-steps; the same on every rank."""

    features: Features
    micro_batch_tokens: int
    pad_id: int
    rank: int
    world_size: int

    def steps_an_epoch(self, global_batch_size: int) -> int:
        """Return the number of steps of an epoch; the last may be smaller."""
        return -(-len(self.features) // global_batch_size)

    def step(self, step: int, *, seed: int, global_batch_size: int) -> tuple[list[TaskBatch], int]:
        """Return this rank's micro-batches of a step, and the terms of the global batch's loss.

        Args:
            step: From 1; epochs follow each other, each in an order of its own.
            seed: Keys order and dropout.
            global_batch_size: Items a step.
        """
        epoch, index = divmod(step - 1, self.steps_an_epoch(global_batch_size))
        start = index * global_batch_size
        order = EpochOrder(len(self.features), seed, epoch)
        items = order.rows(start, min(start + global_batch_size, len(self.features)))
        seeds = instance_seeds(seed, step, np.arange(len(items) * self.features.group))
        return list(self._deal(items, seeds)), int(self.features.weights[items].sum())

    def all(self) -> Iterator[TaskBatch]:
        """Yield this rank's micro-batches of all items, once; without dropout keys."""
        items = np.arange(len(self.features))
        yield from self._deal(items, np.zeros(len(items) * self.features.group, np.int32))

    def _deal(self, items: NDArray[np.int64], seeds: NDArray[np.int32]) -> Iterator[TaskBatch]:
        features, group = self.features, self.features.group
        lengths = features.lengths[items]
        shape = MicroShape(tokens=max(self.micro_batch_tokens, int(lengths.max())), sequences=1 << 20, masked=1 << 30)
        dealt = plan(lengths, features.targets[items], shape, self.world_size)
        sequences = (items[:, None] * group + np.arange(group)).ravel()
        piece = Piece(features.columns, sequences, 0)
        batch_format = BatchFormat(pad_id=self.pad_id, max_seq_length=0, has_labels=True)
        for micro_step in range(dealt.num_micro_steps):
            mine = dealt.micro_batch(micro_step, self.rank)
            ordinals = (mine[:, None] * group + np.arange(group)).ravel()
            inputs = assemble([piece], ordinals, seeds[ordinals], batch_format)
            chosen = items[mine]
            scores = None if features.scores is None else torch.from_numpy(features.scores[chosen])
            yield TaskBatch(inputs, scores, chosen)
