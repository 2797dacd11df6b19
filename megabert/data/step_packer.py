"""One rank's share of a global batch: read, planned, gathered into micro-batches; a pure function of the position."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megabert.data.batch import BatchFormat, MicroBatch, RowBlock, assemble, instance_seeds
from megabert.data.dynamic_masking import make_masker
from megabert.data.order import DataPosition, EpochOrder, PositionRange
from megabert.data.packing import MicroShape, PackingPlan, plan_packing
from megabert.data.shard_set import ShardSet
from megabert.errors import ConfigError
from megabert.masking import MaskingOptions
from megabert.schema import ShardMetadata

_VALIDATION_ROWS = 65_536
"""Instances decoded and planned at once in a validation."""


@dataclass(frozen=True, kw_only=True)
class RankShare:
    """Which part of each global batch a rank takes, and the form of its micro-batches."""

    shape: MicroShape
    """Greatest size of a micro-batch, from `shape_for`."""
    rank: int = 0
    world_size: int = 1
    pad: bool = False
    """Whether micro-batches are padded to the step's shape, as they are on a GPU."""
    pin: bool = False
    """Whether tensors are allocated in page-locked memory, from which a GPU copies faster."""


@dataclass(frozen=True, eq=False)
class StepBatch:
    """One rank's share of a global batch.

    Attributes:
        number: Number of the global batch in the run, which keys the dropout. Skipped updates count here, so it may be
            ahead of the optimizer step.
        micro_batches: As many on every rank; some may be without instances.
        num_masked: Positions to predict in the global batch, over all ranks.
        num_instances: Instances of the global batch, over all ranks.
        num_tokens: Tokens of the global batch, over all ranks.
        position_after: Position in the data behind this batch, for the checkpoint that is written after it.
        stop: Whether some rank asked to stop; all ranks see it at the same batch.
    """

    number: int
    micro_batches: list[MicroBatch]
    num_masked: int
    num_instances: int
    num_tokens: int
    position_after: DataPosition
    stop: bool = False


class StepPacker:
    """Makes a rank's share of any global batch of a phase, without state between batches."""

    def __init__(
        self,
        shards: ShardSet,
        *,
        seed: int,
        global_batch_size: int | Callable[[int], int],
        share: RankShare,
        masking: MaskingOptions | None = None,
    ) -> None:
        """Check the settings.

        Args:
            shards: Instances of one phase.
            seed: Keys the order of data, the masks and the dropout.
            global_batch_size: Instances a step over all ranks, or a function that says it by the number of the batch.
            share: The part that this rank takes.
            masking: How masks are drawn that are left to the loader; None as the shards say.

        Raises:
            ConfigError: If the batch size, the rank or the world size is impossible.
            DataError: If masks are left to the loader and the tokenizer next to the shards cannot be read.
        """
        is_possible = callable(global_batch_size) or global_batch_size >= 1
        if not is_possible or not 0 <= share.rank < share.world_size:
            raise ConfigError(
                f"loader: global_batch_size={global_batch_size}, rank={share.rank}, world_size={share.world_size}; "
                "allowed are a batch size of 1 or more and a rank from 0 to world_size - 1."
            )
        self.shards = shards
        self.share = share
        self._seed = seed
        self._batch_size_of = global_batch_size if callable(global_batch_size) else lambda number: global_batch_size
        self._masker = make_masker(shards, seed, masking)

    def pack(self, position: DataPosition, number: int) -> StepBatch:
        """Read, plan and assemble this rank's share of one global batch.

        Args:
            position: Where the global batch begins.
            number: Number of the batch, which keys the dropout.
        """
        # Every rank reads the rows of the whole global batch, since their lengths make the plan...
        ranges, position_after = position.take(self._batch_size_of(number), self.shards.num_rows)
        blocks = list(self._blocks(ranges))
        lengths = np.concatenate([block.columns.lengths_of(block.indices) for block in blocks])
        masked_counts = np.concatenate([block.columns.masked_counts_of(block.indices) for block in blocks])
        plan = plan_packing(lengths, masked_counts, self.share.shape, self.share.world_size)
        # ...but gathers only the tokens of its own micro-batches.
        seeds = instance_seeds(self._seed, number, np.arange(lengths.size))
        return StepBatch(
            number=number,
            micro_batches=list(_micro_batches(plan, self.share, blocks, seeds, self.shards.metadata)),
            num_masked=int(masked_counts.sum()),
            num_instances=lengths.size,
            num_tokens=int(lengths.sum()),
            position_after=position_after,
        )

    def _blocks(self, ranges: tuple[PositionRange, ...]) -> Iterator[RowBlock]:
        """Yield the instances of ranges of positions, cut where the window of the order changes."""
        ordinal = 0
        for epoch, start, stop in ranges:
            for window, indices in EpochOrder(self.shards.num_rows, self._seed, epoch).parts(start, stop):
                columns = self.shards.columns(window.spans)
                if self._masker is None:
                    yield RowBlock(columns, indices, ordinal)
                else:
                    yield RowBlock(self._masker.mask(columns, indices, epoch), np.arange(indices.size), ordinal)
                ordinal += indices.size


def validation_batches(shards: ShardSet, share: RankShare, *, max_instances: int | None = None) -> Iterator[MicroBatch]:
    """Yield a rank's share of the first instances of a split, in fixed order; as many micro-batches on every rank.

    A validation drops nothing. The seeds of the instances are the same each time; they key what ELECTRA's generator
    draws.

    Args:
        shards: Usually the validation split.
        share: The part that this rank takes.
        max_instances: The most instances over all ranks; None takes all.
    """
    masker = make_masker(shards, seed=0)
    stop = shards.num_rows if max_instances is None else min(max_instances, shards.num_rows)
    for first in range(0, stop, _VALIDATION_ROWS):
        columns = shards.columns(((first, min(first + _VALIDATION_ROWS, stop)),))
        rows = np.arange(len(columns.rows))
        if masker is not None:  # the same masks in every validation
            columns = masker.mask(columns, rows, epoch=0)
        plan = plan_packing(columns.lengths_of(rows), columns.masked_counts_of(rows), share.shape, share.world_size)
        seeds = instance_seeds(0, 0, first + rows)
        yield from _micro_batches(plan, share, [RowBlock(columns, rows, 0)], seeds, shards.metadata)


def _micro_batches(
    plan: PackingPlan,
    share: RankShare,
    blocks: list[RowBlock],
    seeds: NDArray[np.int32],
    metadata: ShardMetadata,
) -> Iterator[MicroBatch]:
    """Assemble the micro-batches that a plan gives to a rank."""
    batch_format = BatchFormat(
        pad_id=metadata.special_ids["pad"],
        max_seq_length=metadata.max_seq_length,
        has_labels=metadata.objective != "none",
        pin=share.pin,
    )
    padded = share.shape.padded(plan.max_tokens, plan.max_masked) if share.pad else None
    for micro_step in range(plan.num_micro_steps):
        ordinals = plan.micro_batch(micro_step, share.rank)
        yield assemble(blocks, ordinals, seeds[ordinals], batch_format, padded)
