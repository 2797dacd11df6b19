"""From encoded examples to packed micro-batches: the steps of training, and one pass of evaluation."""

# M labelled positions

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megabert.data.batch import IGNORED, BatchFormat, MicroBatch, assemble_batch, columns_of, instance_seeds, sent_to
from megabert.data.order import EpochOrder
from megabert.data.packing import MicroShape, plan_packing
from megabert.observability.logs import logger
from megabert.tokens.shards.columns import FlatInstances
from megabert.tokens.tokenization import Tokenizer


@dataclass
class Sequences:
    """A list of sequences that grows example by example."""

    tokenizer: Tokenizer
    max_length: int
    has_segments: bool = True
    """Whether the second text is a segment of its own."""
    ids: list[NDArray[np.int32]] = field(default_factory=list)
    segment_b_starts: list[int] = field(default_factory=list)
    num_truncated: int = 0
    """Sequences that were too long and lost their end."""

    def add(self, a: NDArray[np.int32], b: NDArray[np.int32] | None = None) -> None:
        """Append ``[CLS] a [SEP]`` or ``[CLS] a [SEP] b [SEP]``.

        A pair that is too long is truncated as by transformers: the longer text loses its end first.

        Args:
            a: Ids of the first text.
            b: Ids of the second text.
        """
        # Of a pair that is too long, a ``b`` shorter than half of the room stays whole, and a longer one keeps half of
        # it or all that ``a`` leaves. So both are cut to the same length, or only the longer one is cut. If the room is
        # odd, the longer text keeps one token more, and ``b`` if both are equally long.
        room = self.max_length - (2 if b is None else 2 + self.tokenizer.separators_in_pair)
        total = len(a) + (0 if b is None else len(b))
        if total > room:
            self.num_truncated += 1
            kept_b = 0 if b is None else min(len(b), max((room + (len(b) >= len(a))) // 2, room - len(a)))
            a, b = a[: room - kept_b], None if b is None else b[:kept_b]
        ids, start = self.tokenizer.join(a, b)
        self.ids.append(ids)
        self.segment_b_starts.append(start if self.has_segments else len(ids))

    def columns(self) -> FlatInstances:
        """Return all sequences, end to end, and log how many of them lost their end."""
        if self.num_truncated:
            share = f"{self.num_truncated} of {len(self.ids)}"
            logger.info("%s sequences were cut to %d tokens (max_seq_length)", share, self.max_length)
        return columns_of(self.ids, self.segment_b_starts)


@dataclass(frozen=True)
class Features:
    """The items that are packed and scored. An item is one sequence, or several that stay together."""

    columns: FlatInstances
    labels: NDArray
    """The targets of the loss.

    One row per item: the id of its class, its score (float32), the number of its ending, or its answer's first and last
    token (shape (items, 2), counted from the start of the sequence). Tagging has one row per tagged word instead.
    """
    _: KW_ONLY
    label_positions: NDArray[np.int64] | None = None
    """Tagging: the token, counted from the start of its sequence, that each label belongs to."""
    group: int = 1
    """Sequences in one item."""
    rows: NDArray[np.int64]
    """Rows of logits that each item gives."""
    origins: Sequence[Any] = ()
    """Where each item came from, if its kind asks for that: a context's window, or the first and past-the-last
    character of each labelled piece, of shape (pieces, 2)."""

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each item."""
        return self.columns.lengths.reshape(-1, self.group).sum(1)

    @cached_property
    def label_starts(self) -> NDArray[np.int64]:
        """Tagging: index of each item's first label."""
        return np.cumsum(self.rows) - self.rows

    def select_labels(
        self, items: NDArray[np.int64], starts: NDArray[np.int64]
    ) -> tuple[NDArray, NDArray[np.int64] | None]:
        """Return the labels of some items, and for tagging their positions in a packed micro-batch.

        Args:
            items: The items of the micro-batch, in its order.
            starts: The packed token at which each of them starts.
        """
        if self.label_positions is None:
            return self.labels[items], None
        counts = self.rows[items]
        # Labels of all items are stored end to end: shift each item's range of indices to its place there.
        shifts = self.label_starts[items] - (np.cumsum(counts) - counts)
        indices = np.arange(counts.sum()) + np.repeat(shifts, counts)
        return self.labels[indices], self.label_positions[indices] + np.repeat(starts, counts)


_NO_LIMIT = 1 << 30


class TaskBatch(NamedTuple):
    """One rank's micro-batch with its labels."""

    inputs: MicroBatch
    """The packed sequences; the fields of pre-training's labels are empty."""
    labels: Tensor
    """One row per item, or for tagging per labelled position, as in ``Features.labels``."""
    label_positions_M: Tensor | None
    """Tagging: int64 index into the packed tokens of each label. Other tasks have None."""
    items: NDArray[np.int64]
    """Indices of the items in the features."""

    def to(self, device: torch.device) -> "TaskBatch":
        """Return a copy on a device, for which the host does not wait."""
        positions_M = None if self.label_positions_M is None else sent_to(device, self.label_positions_M)
        return TaskBatch(self.inputs.to(device), sent_to(device, self.labels), positions_M, self.items)


class Batcher(NamedTuple):
    """Distributes items over ranks and micro-steps. Every rank plans the same and takes its own share."""

    features: Features
    micro_batch_tokens: int
    pad_id: int
    rank: int = 0
    world_size: int = 1

    def steps_per_epoch(self, global_batch_size: int) -> int:
        """Return the number of steps in an epoch; the last one may be smaller."""
        return -(-len(self.features) // global_batch_size)

    def step(self, step: int, *, seed: int, global_batch_size: int) -> tuple[list[TaskBatch], int]:
        """Return this rank's micro-batches of a step, and the number of terms in the global batch's loss.

        Args:
            step: Number of the step, from 1. Epochs follow each other, each in an order of its own.
            seed: Keys the order of data and the dropout.
            global_batch_size: Items per step over all ranks.
        """
        epoch, index = divmod(step - 1, self.steps_per_epoch(global_batch_size))
        start = index * global_batch_size
        order = EpochOrder(len(self.features), seed, epoch)
        items = order.rows(start, min(start + global_batch_size, len(self.features)))
        seeds = instance_seeds(seed, step, np.arange(len(items) * self.features.group))
        # The loss has one term for each item, or for each tagged word.
        terms = len(items) if self.features.label_positions is None else int(self.features.rows[items].sum())
        return list(self._micro_batches(items, seeds)), terms

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
        sequences = _sequences_of(items, group)
        batch_format = BatchFormat(pad_id=self.pad_id, max_seq_length=0, has_labels=False)
        for mine in packing.micro_batches(self.rank):
            ordinals = _sequences_of(mine, group)
            inputs = assemble_batch(features.columns, sequences[ordinals], seeds[ordinals], batch_format)
            starts = inputs.cu_seqlens.numpy()[: len(mine) * group : group]
            labels, positions = features.select_labels(items[mine], starts)
            # A rank without items still runs the model, for tagging on one position that is ignored.
            if positions is not None and not len(positions):
                labels, positions = np.array([IGNORED]), np.array([0])
            positions_M = None if positions is None else torch.from_numpy(positions)
            yield TaskBatch(inputs, torch.from_numpy(labels), positions_M, items[mine])


def _sequences_of(items: NDArray[np.int64], group: int) -> NDArray[np.int64]:
    """Return the indices of the sequences that belong to items of ``group`` sequences each."""
    return (items[:, None] * group + np.arange(group)).ravel()
