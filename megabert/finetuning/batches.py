"""From features to packed micro-batches: the steps of training, and one pass of evaluation."""

# M labelled positions

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megabert.data.batch import IGNORED, BatchFormat, MicroBatch, RowBlock, assemble, instance_seeds
from megabert.data.order import EpochOrder
from megabert.data.packing import MicroShape, plan_packing
from megabert.finetuning.features import Features

_NO_LIMIT = 1 << 30


@dataclass(frozen=True, eq=False)
class TaskBatch:
    """One rank's micro-batch with its labels."""

    inputs: MicroBatch
    """The packed sequences; the fields of pre-training's labels are empty."""
    labels: Tensor
    """One row an item, or for tagging one a labelled position; the meaning is that of ``Features.labels``."""
    label_positions_M: Tensor | None
    """Tagging: int64 index into the packed tokens of each label. Other tasks have None."""
    items: NDArray[np.int64]
    """Indices of the items in the features."""

    def to(self, device: torch.device) -> "TaskBatch":
        """Return a copy on a device."""
        positions_M = self.label_positions_M
        return replace(
            self,
            inputs=self.inputs.to(device, non_blocking=True),
            labels=self.labels.to(device),
            label_positions_M=None if positions_M is None else positions_M.to(device),
        )


@dataclass(frozen=True, kw_only=True)
class Batcher:
    """Distributes items over ranks and micro-steps. Every rank plans the same and takes its own share."""

    features: Features
    micro_batch_tokens: int
    pad_id: int
    rank: int = 0
    world_size: int = 1

    def steps_an_epoch(self, global_batch_size: int) -> int:
        """Return the number of steps in an epoch; the last one may be smaller."""
        return -(-len(self.features) // global_batch_size)

    def step(self, step: int, *, seed: int, global_batch_size: int) -> tuple[list[TaskBatch], int]:
        """Return this rank's micro-batches of a step, and the number of terms in the global batch's loss.

        Args:
            step: Number of the step, from 1. Epochs follow each other, each in an order of its own.
            seed: Keys the order of data and the dropout.
            global_batch_size: Items a step over all ranks.
        """
        epoch, index = divmod(step - 1, self.steps_an_epoch(global_batch_size))
        start = index * global_batch_size
        order = EpochOrder(len(self.features), seed, epoch)
        items = order.rows(start, min(start + global_batch_size, len(self.features)))
        seeds = instance_seeds(seed, step, np.arange(len(items) * self.features.group))
        return list(self._micro_batches(items, seeds)), self.features.count_terms(items)

    def all(self) -> Iterator[TaskBatch]:
        """Yield this rank's micro-batches of all items once, without dropout keys."""
        items = np.arange(len(self.features))
        yield from self._micro_batches(items, np.zeros(len(items) * self.features.group, np.int32))

    def _micro_batches(self, items: NDArray[np.int64], seeds: NDArray[np.int32]) -> Iterator[TaskBatch]:
        features, group = self.features, self.features.group
        lengths = features.lengths[items]
        # An item longer than the budget gets a micro-batch of its own; only tokens limit a micro-batch.
        most_tokens = max(self.micro_batch_tokens, int(lengths.max()))
        shape = MicroShape(tokens=most_tokens, sequences=_NO_LIMIT, masked=_NO_LIMIT)
        packing = plan_packing(lengths, np.zeros_like(lengths), shape, self.world_size)
        block = RowBlock(features.columns, _sequences_of(items, group), 0)
        batch_format = BatchFormat(pad_id=self.pad_id, max_seq_length=0, has_labels=False)
        for micro_step in range(packing.num_micro_steps):
            mine = packing.micro_batch(micro_step, self.rank)
            ordinals = _sequences_of(mine, group)
            inputs = assemble([block], ordinals, seeds[ordinals], batch_format)
            yield self._labelled(inputs, items[mine])

    def _labelled(self, inputs: MicroBatch, items: NDArray[np.int64]) -> TaskBatch:
        starts = inputs.cu_seqlens.numpy()[: len(items) * self.features.group : self.features.group]
        labels, positions = self.features.select_labels(items, starts)
        if positions is None:
            return TaskBatch(inputs, torch.from_numpy(labels), None, items)
        if not len(positions):  # a rank without items still runs the model, on one position that is ignored
            labels, positions = np.array([IGNORED]), np.array([0])
        return TaskBatch(inputs, torch.from_numpy(labels), torch.from_numpy(positions), items)


def _sequences_of(items: NDArray[np.int64], group: int) -> NDArray[np.int64]:
    """Return the indices of the sequences that belong to items of ``group`` sequences each."""
    return (items[:, None] * group + np.arange(group)).ravel()
