"""One rank's share of a global batch: read, planned, gathered into micro-batches; a pure function of the position.

Random offsets of positions are drawn here as well, so that short instances train rows of the position table that longer
ones will read. Kiyono et al. 2021 (SHAPE, arXiv:2109.05644) shift all positions of a sequence by a random number. Here
[CLS] keeps position 0, as in a phase without offsets: an instance of n tokens has the positions 0, 1 + k, ...,
n - 1 + k.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise, starmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megabert.data.batch import BatchFormat, MicroBatch, assemble_batch, instance_seeds
from megabert.data.dynamic_masking import DynamicMasker
from megabert.data.mixture import Mixture, Positions, Ranges, global_rows
from megabert.data.order import BLOCK_ROWS, DataPosition, EpochOrder, Window
from megabert.data.packing import PackingPlan, RankShare, plan_packing
from megabert.foundation.errors import DataError
from megabert.foundation.randomness.keyed import below, mix, string_key
from megabert.tokens.masking import MaskingOptions
from megabert.tokens.shards.shard_set import ShardSet, Sizes

_VALIDATION_ROWS = 65_536
"""Instances planned at once in a validation."""
_KEPT_WINDOWS = 3
"""Windows of a source whose lengths are kept: the one being read, the next one, and one to spare."""
_AHEAD_TOKENS = 1 << 23
"""Tokens of this rank that are read ahead at most: 32 MiB of ids, and their masks."""
_OFFSETS_KEY = string_key("data/position_offsets")


def position_offsets(num_positions: int, lengths: NDArray[np.integer], *keys: Any) -> NDArray[np.int64]:
    """Return the offset of each instance, from 0 to the number of positions that it leaves free.

    It is the same on any rank, in any micro-batch and after a resume.

    Args:
        num_positions: Rows of the position table; no position is as large.
        lengths: Tokens of each instance, at most ``num_positions``.
        *keys: Seed, and for each instance the epoch in which it is read and its global row.
    """
    return below(mix(_OFFSETS_KEY, *keys), num_positions - lengths.astype(np.int64) + 1)


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
    """Makes a rank's share of any global batch of a phase, a function of the batch's number and position alone.

    With N sources it reads the rows of up to N batches at once. A batch has few rows of each source, and they are as
    far apart as the rows of N batches: each costs a look-up in another part of another file.
    """

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
        self._masker = None if shards.first.has_masks else DynamicMasker(shards, seed)
        self._num_positions = num_positions
        # Many steps in succession ask for the same windows.
        self._sizes_of = [lru_cache(maxsize=_KEPT_WINDOWS)(source.sizes) for source in shards.sources]
        self._ahead: Iterator[StepBatch] = iter(())
        self._next: tuple[int, Positions] | None = None
        """Number and positions of the batch that ``_ahead`` makes next, if it has not ended."""

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
        batch = next(self._ahead, None) if self._next == (number, positions) else None
        if batch is None:
            batch = self._begin(positions, number)
        self._next = number + 1, batch.positions_after
        return batch

    def _begin(self, positions: Positions, number: int) -> StepBatch:
        """Read some batches from a position on, and return the first one; just this one if others are damaged."""
        tokens = len(self._batch_of(number)) * self.shards.first.metadata.max_seq_length // self.share.world_size
        most = min(len(self.shards.sources), max(1, _AHEAD_TOKENS // max(1, tokens)))
        try:
            self._ahead = self._batches(positions, number, most)
            return next(self._ahead)
        except DataError:
            if most == 1:
                raise
        self._ahead = self._batches(positions, number, 1)
        return next(self._ahead)

    def _batches(self, positions: Positions, number: int, most: int) -> Iterator[StepBatch]:
        """Yield batches whose rows are read at once: at most ``most``, and of one kind of masks."""
        masking, batches = self._masking_of(number), [self._batch_of(number)]
        while len(batches) < most and self._masking_of(number + len(batches)) == masking:
            batches.append(self._batch_of(number + len(batches)))
        masker = self._masker and self._masker.with_options(masking)
        group = self._look_up(positions, batches)
        made = _Reading(self.shards, self.share, masker, self._num_positions).micro_batches(group, self._seed, number)
        for index, (batch, (plan, micro_batches)) in enumerate(zip(batches, made, strict=True)):
            ranges, positions = self.shards.take(positions, batch)
            drawn = sum(micro_batch.num_masked for micro_batch in micro_batches)
            yield StepBatch(
                number=number + index,
                micro_batches=micro_batches,
                num_masked=plan.num_masked if masker is None else drawn,
                lengths=group.sizes.lengths[group.borders[index] : group.borders[index + 1]],
                ranges=ranges,
                positions_after=positions,
            )

    def _look_up(self, positions: Positions, batches: Sequence[range]) -> "_Group":
        """Return how long the instances of some successive batches are, and which rows they are."""
        taken = self.shards.take(positions, range(batches[0].start, batches[-1].stop))[0]
        parts = [
            (number, epoch, *part)
            for number, (source, key) in enumerate(zip(self.shards.sources, self.shards.sha256, strict=True))
            for epoch, start, stop in taken[key]
            for part in EpochOrder(source.num_rows, self._seed, epoch).parts(start, stop)
        ]
        sizes = [self._sizes_of[number](window.spans) for number, _, window, _ in parts]
        return _Group.of(parts, sizes, np.array([self.shards.counts(batch) for batch in batches]).T)


def _equal_batch(size: int, number: int) -> range:
    return range(number * size, (number + 1) * size)


@dataclass(frozen=True, eq=False)
class _Group:
    """Some successive global batches as every rank knows them: how long their instances are, and which rows they are.

    Attributes:
        borders: Where each batch begins, and the end of the last.
        sizes: How long the instances are, batch by batch.
        rows: Row of each instance, numbered over all sources.
        epochs: Epoch of each instance.
    """

    borders: NDArray[np.int64]
    sizes: Sizes
    rows: NDArray[np.int64]
    epochs: NDArray[np.int64]

    @classmethod
    def of(
        cls, parts: list[tuple[int, int, Window, NDArray[np.int32]]], sizes: list[Sizes], counts: NDArray[np.int64]
    ) -> "_Group":
        """Bring instances that are listed source by source into the order of the batches.

        Args:
            parts: For each stretch its source, its epoch, its window, and the indices of its instances there.
            sizes: How long all instances of each window are.
            counts: Instances of each source in each batch.
        """
        indices = [own for *_, own in parts]
        columns: list[NDArray[Any]] = [
            np.concatenate([global_rows(source, window.rows_at(own)) for source, _, window, own in parts])
        ]
        columns.append(np.repeat([epoch for _, epoch, *_ in parts], [own.size for own in indices]))
        columns += [np.concatenate([own[k][i] for own, i in zip(sizes, indices, strict=True)]) for k in range(2)]
        if counts.shape[1] > 1:
            batches = np.tile(np.arange(counts.shape[1], dtype=np.uint16), len(counts))
            order = np.argsort(np.repeat(batches, counts.ravel()), kind="stable")
            columns = [column[order] for column in columns]
        rows, epochs, *kinds = columns
        return cls(np.cumsum([0, *counts.sum(axis=0)]), Sizes(*kinds), rows, epochs)


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
    reading = _Reading(whole, share, None if shards.has_masks else DynamicMasker(whole, seed=0), num_positions=None)
    stop = shards.num_rows if max_instances is None else min(max_instances, shards.num_rows)
    for first in range(0, stop, _VALIDATION_ROWS):
        end = min(first + _VALIDATION_ROWS, stop)
        spans = tuple((block, min(block + BLOCK_ROWS, end)) for block in range(first, end, BLOCK_ROWS))
        # Epoch 0: the same masks in every validation.
        rows = Window(spans, first, np.arange(end - first, dtype=np.int32))
        batch = _Group.of([(0, 0, rows, rows.order)], [shards.sizes(spans)], np.array([[rows.order.size]]))
        for _, micro_batches in reading.micro_batches(batch, seed=0, number=0, first=first):
            yield from micro_batches


@dataclass(frozen=True)
class _Reading:
    """How this rank reads its share of a global batch."""

    shards: Mixture
    """The sources that hold its rows."""
    share: RankShare
    """The part that this rank takes."""
    masker: DynamicMasker | None
    """Makes the masks if they are not in the shards."""
    num_positions: int | None
    """Rows of the position table over which positions are shifted; None leaves them as they are."""

    def micro_batches(
        self, group: _Group, seed: int, number: int, *, first: int = 0
    ) -> Iterator[tuple[PackingPlan, list[MicroBatch]]]:
        """Read this rank's rows of all batches, then yield the plan and the micro-batches of one after the other.

        Args:
            group: The batches.
            seed: Keys the dropout, with the number of each batch.
            number: Number of the first batch.
            first: Number of a batch's first instance under its key.
        """
        # How many masks an instance gets is not known before it is read: the plan leaves room for the most.
        lengths, masked_counts = group.sizes
        most_masked = masked_counts if self.masker is None else self.masker.most_predictions(lengths)
        batches, shape = list(starmap(slice, pairwise(group.borders.tolist()))), self.share.shape
        plans = [plan_packing(lengths[own], most_masked[own], shape, self.share.world_size) for own in batches]
        bins = [plan.micro_batches(self.share.rank) for plan in plans]
        ordinals = np.concatenate([own.start + mine for own, part in zip(batches, bins, strict=True) for mine in part])
        rows, epochs = group.rows[ordinals], group.epochs[ordinals]
        # The rows are read in the order in which they are stored, so that each record batch is looked up once.
        stored = np.argsort(rows, kind="stable")
        columns = self.shards.rows(rows[stored], Sizes(*(kind[ordinals[stored]] for kind in group.sizes)))
        if self.masker is not None:
            columns = self.masker.mask(columns, epochs[stored])
        index_of = np.empty_like(stored)
        index_of[stored] = np.arange(stored.size)
        metadata = self.shards.first.metadata
        batch_format = BatchFormat(
            pad_id=metadata.special_ids["pad"],
            max_seq_length=metadata.max_seq_length,
            has_labels=metadata.objective != "none",
            pin=self.share.pin,
        )
        drawn = None
        if self.num_positions is not None:
            drawn = position_offsets(self.num_positions, lengths[ordinals], seed, epochs, rows)
        start = 0
        for index, (plan, mine) in enumerate(zip(plans, bins, strict=True)):
            padded = shape.padded(plan.max_tokens, plan.max_masked) if self.share.pad else None
            made = []
            for own in mine:
                here = slice(start, start + own.size)
                start, shifts = here.stop, None if drawn is None else drawn[here]
                seeds = instance_seeds(seed, number + index, first + own)
                made.append(assemble_batch(columns, index_of[here], seeds, batch_format, padded, offsets=shifts))
            yield plan, made
