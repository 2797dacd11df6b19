"""The loader: global batches in keyed order, packed and dealt to ranks, made on a side thread one step ahead."""

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from megabert.data.batch import BatchFormat, MicroBatch, Piece, assemble, instance_seeds
from megabert.data.dynamic_masking import DynamicMasker, make_masker
from megabert.data.packing import MicroShape, PackingPlan, plan
from megabert.data.permutation import EpochOrder
from megabert.data.position import DataPosition, PositionRange
from megabert.data.shard_set import ShardSet
from megabert.errors import ConfigError, DataError, Echo

Agree = Callable[[NDArray[np.int64]], NDArray[np.int64]]
"""Takes [masked, instances, micro-steps, stop] of this rank; returns sum, sum, max, max over ranks."""

_STOP = 1
_FAILED = 2
_VALIDATION_ROWS = 65_536
"""Instances decoded and planned at once in a validation."""


@dataclass(frozen=True, eq=False)
class StepBatch:
    """One rank's share of a global batch.

    Attributes:
        step: The optimizer step it is for.
        micro_batches: As many on every rank; some may be empty.
        num_masked: Positions to predict in the global batch, over all ranks.
        num_instances: Instances of the global batch.
        num_tokens: Tokens of the global batch.
        position_after: Where the data stand once this step is done; what a checkpoint after it saves.
        stop: Some rank asked to stop; all ranks see it at the same step.
    """

    step: int
    micro_batches: list[MicroBatch]
    num_masked: int
    num_instances: int
    num_tokens: int
    position_after: DataPosition
    stop: bool


class PackedLoader:
    """Iterator of ``StepBatch``; global batch k is the same set of instances whatever the ranks and the packing.

    A thread makes the batch of step k + 1 while step k is consumed, never more. Close it (or leave the ``with``
    block) on every way out.
    """

    def __init__(
        self,
        shards: ShardSet,
        *,
        seed: int,
        global_batch_size: int,
        shape: MicroShape,
        rank: int = 0,
        world_size: int = 1,
        position: DataPosition | None = None,
        first_step: int = 1,
        num_steps: int | None = None,
        pad: bool = False,
        agree: Agree | None = None,
        pin: bool = False,
    ):
        """Start the thread.

        Args:
            shards: Instances of one phase.
            seed: Keys the order of data and the dropout seeds.
            global_batch_size: Instances a step over all ranks.
            shape: Greatest size of a micro-batch, from ``packing.shape_for``.
            rank: This rank.
            world_size: Ranks.
            position: Where to start; default the first instance of epoch 0.
            first_step: Number of the first step that is yielded.
            num_steps: Steps to yield; None never ends.
            pad: Pad micro-batches to the step's shape: on a GPU.
            agree: Agreement over ranks, called on the side thread once a step; None where there is one rank.
            pin: Allocate in page-locked memory.

        Raises:
            ConfigError: If the batch size, the rank or the world size is impossible.
            DataError: If masks are left to the loader and the tokenizer beside the shards cannot be read.
        """
        if global_batch_size < 1 or not 0 <= rank < world_size:
            raise ConfigError(
                f"loader: global_batch_size={global_batch_size}, rank={rank}, world_size={world_size}; allowed are a "
                "batch size of 1 or more and a rank from 0 to world_size - 1."
            )
        self._shards = shards
        self._seed = seed
        self._masker = make_masker(shards, seed)
        self._global_batch_size = global_batch_size
        self._shape = shape
        self._rank = rank
        self._world_size = world_size
        self._pad = pad
        self._agree = agree
        self._format = _format(shards, pin)
        # Page-locked memory belongs to a device's context; a new thread would open one on device 0 for every rank.
        self._device = torch.cuda.current_device() if pin else None
        self._stop_requested = threading.Event()
        self._turn = threading.Condition()
        self._granted = 1  # steps that the thread may have made so far
        self._closed = False
        self._made: queue.SimpleQueue[StepBatch | BaseException] = queue.SimpleQueue()
        self._ended: BaseException | None = None
        arguments = (position or DataPosition(), first_step, num_steps)
        self._thread = threading.Thread(target=self._work, args=arguments, name="megabert-loader", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[StepBatch]:
        return self

    def __next__(self) -> StepBatch:
        """Wait for the next step's batch and let the thread make the one behind it.

        Raises:
            StopIteration: After ``num_steps`` steps, or when closed.
            Exception: Whatever stopped the thread; again on every later call.
        """
        if self._ended is None:
            made = StopIteration() if self._closed else self._made.get()
            if isinstance(made, StepBatch):
                self._grant()
                return made
            self._ended = made
        raise self._ended

    def __enter__(self) -> "PackedLoader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def request_stop(self) -> None:
        """Ask all ranks to stop: a batch made soon, the same one on every rank, has ``stop`` set."""
        self._stop_requested.set()

    def close(self, timeout_s: float | None = 30.0) -> None:
        """End the thread and wait for it.

        With several ranks the step granted last is still agreed upon, since the others wait for this rank in the
        collective. Where they died, the wait ends after ``timeout_s`` and the daemon thread with the process.
        """
        with self._turn:
            self._closed = True
            self._turn.notify()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _grant(self) -> None:
        with self._turn:
            self._granted += 1
            self._turn.notify()

    def _work(self, position: DataPosition, first_step: int, num_steps: int | None) -> None:
        made = 0
        end: BaseException = StopIteration()
        try:
            if self._device is not None:
                torch.cuda.set_device(self._device)
            while made != num_steps and self._may_make(made):
                batch = self._make(position, first_step + made)
                self._made.put(batch)
                position, made = batch.position_after, made + 1
        except BaseException as error:  # handed to the consumer, which raises it
            end = error
        self._made.put(end)

    def _may_make(self, made: int) -> bool:
        with self._turn:
            self._turn.wait_for(lambda: self._closed or self._granted > made)
            return self._granted > made and (not self._closed or self._agree is not None)

    def _make(self, position: DataPosition, step: int) -> StepBatch:
        """Make one step's batch and agree on it with the other ranks."""
        try:
            batch = self._pack(position, step)
        except BaseException:
            if self._agree is not None:  # the others would wait for this rank
                self._agree(np.array([0, 0, 0, _FAILED]))
            raise
        if self._agree is None:
            return batch
        mine = [
            sum(b.num_masked for b in batch.micro_batches),
            sum(b.num_instances for b in batch.micro_batches),
            len(batch.micro_batches),
            _STOP if batch.stop else 0,
        ]
        masked, instances, micro_steps, stop = (int(v) for v in self._agree(np.array(mine, np.int64)))
        if stop >= _FAILED:
            raise Echo(DataError(f"step {step}: the loader of another rank failed; the error is in that rank's log."))
        if (masked, instances, micro_steps) != (batch.num_masked, batch.num_instances, mine[2]):
            raise DataError(
                f"rank {self._rank}, step {step}: all ranks together have {instances} instances, {masked} masked "
                f"positions and up to {micro_steps} micro-steps, but this rank's shards give {batch.num_instances}, "
                f"{batch.num_masked} and {mine[2]}. The ranks read different shards or settings: give all nodes the "
                f"same {self._shards.folder}."
            )
        return replace(batch, stop=stop >= _STOP)

    def _pack(self, position: DataPosition, step: int) -> StepBatch:
        """Read, pack and assemble this rank's share of one global batch."""
        ranges, position_after = position.take(self._global_batch_size, self._shards.num_rows)
        pieces = list(_pieces(self._shards, self._seed, ranges, self._masker))
        lengths = np.concatenate([p.columns.lengths[p.indices] for p in pieces])
        masked_counts = np.concatenate([p.columns.masked_counts[p.indices] for p in pieces])
        dealt = plan(lengths, masked_counts, self._shape, self._world_size)
        padded = self._shape.padded(dealt.max_tokens, dealt.max_masked) if self._pad else None
        seeds = instance_seeds(self._seed, step, np.arange(lengths.size))
        return StepBatch(
            step=step,
            micro_batches=list(_micro_batches(dealt, self._rank, pieces, seeds, self._format, padded)),
            num_masked=int(masked_counts.sum()),
            num_instances=lengths.size,
            num_tokens=int(lengths.sum()),
            position_after=position_after,
            stop=self._stop_requested.is_set(),
        )


def validation_batches(
    shards: ShardSet,
    shape: MicroShape,
    *,
    rank: int = 0,
    world_size: int = 1,
    max_instances: int | None = None,
    pad: bool = False,
) -> Iterator[MicroBatch]:
    """Yield a rank's share of the first instances of a split, in fixed order; as many micro-batches on every rank.

    Validation drops nothing; the instances' seeds, the same each time, key what ELECTRA's generator draws.

    Args:
        shards: Usually the validation split.
        shape: Greatest size of a micro-batch.
        rank: This rank.
        world_size: Ranks.
        max_instances: At most so many instances over all ranks; None takes all.
        pad: Pad micro-batches.
    """
    masker = make_masker(shards, seed=0)
    stop = shards.num_rows if max_instances is None else min(max_instances, shards.num_rows)
    batch_format = _format(shards, pin=False)
    for first in range(0, stop, _VALIDATION_ROWS):
        columns = shards.columns(((first, min(first + _VALIDATION_ROWS, stop)),))
        if masker is not None:  # the same masks in every validation
            columns = masker.mask(columns, np.arange(len(columns.rows)), epoch=0)
        dealt = plan(columns.lengths, columns.masked_counts, shape, world_size)
        padded = shape.padded(dealt.max_tokens, dealt.max_masked) if pad else None
        rows = np.arange(len(columns.rows))
        seeds = instance_seeds(0, 0, first + rows)
        yield from _micro_batches(dealt, rank, [Piece(columns, rows, 0)], seeds, batch_format, padded)


def _micro_batches(
    dealt: PackingPlan,
    rank: int,
    pieces: list[Piece],
    seeds: NDArray[np.int32],
    batch_format: BatchFormat,
    padded: MicroShape | None,
) -> Iterator[MicroBatch]:
    for micro_step in range(dealt.num_micro_steps):
        ordinals = dealt.micro_batch(micro_step, rank)
        yield assemble(pieces, ordinals, seeds[ordinals], batch_format, padded)


def _pieces(
    shards: ShardSet, seed: int, ranges: tuple[PositionRange, ...], masker: DynamicMasker | None
) -> Iterator[Piece]:
    """Yield the instances of ranges of positions, cut where the window of the order changes."""
    ordinal = 0
    for epoch, start, stop in ranges:
        order = EpochOrder(shards.num_rows, seed, epoch)
        while start < stop:
            window = order.window_at(start)
            indices = window.order[start - window.start : stop - window.start]
            columns = shards.columns(window.spans)
            if masker is None:
                yield Piece(columns, indices, ordinal)
            else:
                yield Piece(masker.mask(columns, indices, epoch), np.arange(indices.size), ordinal)
            start += indices.size
            ordinal += indices.size


def _format(shards: ShardSet, pin: bool) -> BatchFormat:
    metadata = shards.metadata
    return BatchFormat(
        pad_id=metadata.special_ids["pad"],
        max_seq_length=metadata.max_seq_length,
        has_labels=metadata.objective != "none",
        pin=pin,
    )
