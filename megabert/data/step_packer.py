"""One rank's share of a global batch: read, planned, gathered into micro-batches; a pure function of the position.

Random offsets of positions are drawn here as well, so that short instances train rows of the position table that longer
ones will read. Kiyono et al. 2021 (SHAPE, arXiv:2109.05644) shift all positions of a sequence by a random number. Here
[CLS] keeps position 0, as in a phase without offsets: an instance of n tokens has the positions 0, 1 + k, ...,
n - 1 + k.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from megabert.data.batch import BatchFormat, MicroBatch, assemble_batch, instance_seeds
from megabert.data.dynamic_masking import DynamicMasker
from megabert.data.mixture import Mixture, Positions, Ranges, global_rows
from megabert.data.order import BLOCK_ROWS, DataPosition, EpochOrder, Window
from megabert.data.packing import PackingPlan, RankShare, plan_packing
from megabert.foundation.randomness.keyed import below, mix, string_key
from megabert.tokens.masking import MaskingOptions
from megabert.tokens.shards.shard_set import ShardSet, Sizes

_VALIDATION_ROWS = 65_536
"""Instances planned at once in a validation."""
_KEPT_WINDOWS = 3
"""Windows of a source whose lengths are kept: the one being read, the next one, and one to spare."""
_OFFSETS_KEY = string_key("data/position_offsets")


@dataclass(frozen=True)
class PositionOffsets:
    """Offsets as a function of (seed, epoch, row): the same on any rank, in any micro-batch and after a resume."""

    seed: int
    num_positions: int
    """Rows of the position table; no position is as large."""

    def draw(
        self, epochs: NDArray[np.int64], rows: NDArray[np.int64], lengths: NDArray[np.integer]
    ) -> NDArray[np.int64]:
        """Return the offset of each instance, from 0 to the number of positions that it leaves free.

        Args:
            epochs: Epoch in which each instance is read.
            rows: Its global row.
            lengths: Its tokens, at most ``num_positions``.
        """
        return below(mix(_OFFSETS_KEY, self.seed, epochs, rows), self.num_positions - lengths.astype(np.int64) + 1)


@dataclass(frozen=True, eq=False)
class StepBatch:
    """One rank's share of a global batch.

    Attributes:
        number: Number of the global batch in the run, which keys the dropout. Skipped updates count here, so it may be
            ahead of the optimizer step.
        micro_batches: The same number on every rank; some may be without instances.
        num_masked: Positions to predict in the global batch, over all ranks. If masks are made while loading, a rank
            counts its own share only, until the ranks have agreed.
        lengths: Tokens of each instance of the global batch.
        ranges: Where in the data of each build the instances of the global batch are.
        positions_after: Data positions after this batch; a checkpoint that is written next stores them.
        stop: Whether some rank asked to stop; all ranks see it at the same batch.
    """

    number: int
    micro_batches: list[MicroBatch]
    num_masked: int
    lengths: NDArray[np.uint16]
    ranges: dict[str, Ranges]
    positions_after: dict[str, DataPosition]
    stop: bool = False

    @property
    def num_instances(self) -> int:
        """Instances of the global batch, over all ranks."""
        return self.lengths.size

    @property
    def num_tokens(self) -> int:
        """Tokens of the global batch, over all ranks."""
        return int(self.lengths.sum(dtype=np.int64))


class StepPacker:
    """Makes a rank's share of any global batch of a phase, without state between batches."""

    def __init__(
        self,
        shards: Mixture,
        *,
        seed: int,
        global_batch_size: int | Callable[[int], range],
        share: RankShare,
        masking: MaskingOptions | Callable[[int], MaskingOptions | None] | None = None,
        num_positions: int | None = None,
    ) -> None:
        """Check the settings.

        Args:
            shards: Sources of one phase.
            seed: Keys the order of data, the masks and the dropout.
            global_batch_size: Instances per step over all ranks, or a function of the number of the batch that returns
                the numbers of its instances in the phase.
            share: The part that this rank takes.
            masking: How masks are drawn that are left to the loader, or a function that says it by the number of the
                batch; None as the shards say.
            num_positions: Rows of the position table over which instances are spread, each by an offset of its own;
                None lets all of them begin at position 0.

        Raises:
            DataError: If masks are left to the loader and the tokenizer next to the shards cannot be read.
        """
        self.shards = shards
        self.share = share
        self._seed = seed
        self._batch_of = global_batch_size if callable(global_batch_size) else partial(_equal_batch, global_batch_size)
        self._masking_of = masking if callable(masking) else lambda number: masking
        self._masker = None if shards.has_masks else DynamicMasker(shards, seed)
        self._offsets = None if num_positions is None else PositionOffsets(seed, num_positions)
        # Many steps in succession ask for the same windows.
        self._sizes_of = [lru_cache(maxsize=_KEPT_WINDOWS)(source.sizes) for source in shards.sources]

    def pack(self, positions: Positions, number: int) -> StepBatch:
        """Make this rank's share of a global batch.

        1. Take the ranges of each source that hold its next instances, and look up which rows these are (`EpochOrder`).
        2. Look up their lengths, and the number of masks that each has or may get, without reading the rows.
        3. Plan the micro-batches of all ranks from these numbers alone, as every rank does (`plan_packing`).
        4. Read the rows of this rank's micro-batches, in the order in which they are stored.
        5. Mask them, if the shards have no masks.
        6. Gather the instances of each micro-batch end to end (`assemble_batch`).

        Args:
            positions: Where the global batch begins in each source; nothing for the beginning of all.
            number: Number of the batch, which keys the dropout.
        """
        ranges, positions_after = self.shards.take(positions, self._batch_of(number))
        batch = self._look_up(ranges)
        masker = self._masker and self._masker.with_options(self._masking_of(number))
        reading = _Reading(self.shards, self.share, masker, (self._seed, number), self._offsets)
        plan = reading.plan(batch)
        micro_batches = list(reading.micro_batches(batch, plan))
        drawn = sum(micro_batch.num_masked for micro_batch in micro_batches)
        return StepBatch(
            number=number,
            micro_batches=micro_batches,
            num_masked=plan.num_masked if self._masker is None else drawn,
            lengths=batch.sizes.lengths,
            ranges=ranges,
            positions_after=positions_after,
        )

    def _look_up(self, ranges: dict[str, Ranges]) -> "_GlobalBatch":
        """Return how long the instances at ranges of positions are."""
        parts = [
            (number, epoch, window, indices)
            for number, (source, key) in enumerate(zip(self.shards.sources, self.shards.sha256, strict=True))
            for epoch, start, stop in ranges[key]
            for window, indices in EpochOrder(source.num_rows, self._seed, epoch).parts(start, stop)
        ]
        sizes = [(self._sizes_of[number](window.spans), indices) for number, _, window, indices in parts]
        return _GlobalBatch(parts, _gathered(sizes))


def _equal_batch(size: int, number: int) -> range:
    return range(number * size, (number + 1) * size)


@dataclass(frozen=True, eq=False)
class _GlobalBatch:
    """A global batch as every rank knows it: how long its instances are, and which rows they are.

    Attributes:
        parts: For each stretch of the batch its source, its epoch, its window, and the indices of its instances there.
        sizes: How long the instances are, in the order of the batch.
    """

    parts: list[tuple[int, int, Window, NDArray[np.int32]]]
    sizes: Sizes

    def find(self, ordinals: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the row, numbered over all sources, and the epoch of some instances."""
        rows, epochs, start = np.empty_like(ordinals), np.empty_like(ordinals), 0
        for source, epoch, window, indices in self.parts:
            here = np.flatnonzero((ordinals >= start) & (ordinals < start + indices.size))
            rows[here] = global_rows(source, window.rows_at(indices[ordinals[here] - start]))
            epochs[here] = epoch
            start += indices.size
        return rows, epochs


def _gathered(parts: list[tuple[Sizes, NDArray[np.int32]]]) -> Sizes:
    """Return how long the instances are that have some indices in each part."""
    return Sizes(*(np.concatenate([sizes[kind][indices] for sizes, indices in parts]) for kind in range(2)))


def validation_batches(shards: ShardSet, share: RankShare, *, max_instances: int | None = None) -> Iterator[MicroBatch]:
    """Yield a rank's share of the first instances of a split, in fixed order, in equally many micro-batches per rank.

    A validation drops nothing. The seeds of the instances are the same each time; they key what ELECTRA's generator
    draws.

    Args:
        shards: Usually the validation split.
        share: The part that this rank takes.
        max_instances: The most instances over all ranks; None takes all.
    """
    whole = Mixture((shards,))
    reading = _Reading(whole, share, None if shards.has_masks else DynamicMasker(whole, seed=0), key=(0, 0))
    stop = shards.num_rows if max_instances is None else min(max_instances, shards.num_rows)
    for first in range(0, stop, _VALIDATION_ROWS):
        end = min(first + _VALIDATION_ROWS, stop)
        spans = tuple((block, min(block + BLOCK_ROWS, end)) for block in range(first, end, BLOCK_ROWS))
        # Epoch 0: the same masks in every validation.
        rows = Window(spans, first, np.arange(end - first, dtype=np.int32))
        batch = _GlobalBatch([(0, 0, rows, rows.order)], _gathered([(shards.sizes(spans), rows.order)]))
        yield from reading.micro_batches(batch, reading.plan(batch), first=first)


@dataclass(frozen=True)
class _Reading:
    """How this rank reads its share of a global batch."""

    shards: Mixture
    """The sources that hold its rows."""
    share: RankShare
    """The part that this rank takes."""
    masker: DynamicMasker | None
    """Makes the masks if they are not in the shards."""
    key: tuple[int, int]
    """Seed and number of the batch, which key the dropout."""
    offsets: PositionOffsets | None = None
    """Shifts positions; None leaves them as they are."""

    def plan(self, batch: _GlobalBatch) -> PackingPlan:
        """Distribute a global batch over the ranks' micro-batches."""
        # How many masks an instance gets is not known before it is read: the plan leaves room for the most.
        lengths, masked_counts = batch.sizes
        most_masked = masked_counts if self.masker is None else self.masker.most_predictions(lengths)
        return plan_packing(lengths, most_masked, self.share.shape, self.share.world_size)

    def micro_batches(self, batch: _GlobalBatch, plan: PackingPlan, *, first: int = 0) -> Iterator[MicroBatch]:
        """Read and assemble this rank's micro-batches; ``first`` is the number of the first instance under the key."""
        lengths, masked_counts = batch.sizes
        bins = plan.micro_batches(self.share.rank)
        ordinals = np.concatenate(bins)
        rows, epochs = batch.find(ordinals)
        # The rows are read in the order in which they are stored, so that each record batch is looked up once.
        stored = np.argsort(rows, kind="stable")
        columns = self.shards.rows(rows[stored], Sizes(lengths[ordinals[stored]], masked_counts[ordinals[stored]]))
        if self.masker is not None:
            columns = self.masker.mask(columns, epochs[stored])
        index_of = np.empty_like(stored)
        index_of[stored] = np.arange(stored.size)
        metadata, shape = self.shards.metadata, self.share.shape
        batch_format = BatchFormat(
            pad_id=metadata.special_ids["pad"],
            max_seq_length=metadata.max_seq_length,
            has_labels=metadata.objective != "none",
            pin=self.share.pin,
        )
        padded = shape.padded(plan.max_tokens, plan.max_masked) if self.share.pad else None
        drawn = None if self.offsets is None else self.offsets.draw(epochs, rows, lengths[ordinals])
        start = 0
        for mine in bins:
            here = slice(start, start + mine.size)
            start, shifts = here.stop, None if drawn is None else drawn[here]
            seeds = instance_seeds(*self.key, first + mine)
            yield assemble_batch(columns, index_of[here], seeds, batch_format, padded, offsets=shifts)
