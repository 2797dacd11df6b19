"""The instance shards of one split, by global rows: all lengths ahead of time, then the instances that are needed."""

import math
import resource
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from megabert.foundation.cached_folders import fetch_files, place_of
from megabert.foundation.errors import DataError
from megabert.foundation.whole_folders import publish_folder
from megabert.settings.config.phase import PhaseConfig
from megabert.tokens.masking import MaskingOptions
from megabert.tokens.shards.columns import FlatInstances
from megabert.tokens.shards.folder import (
    InstanceStatistics,
    LengthsSpan,
    Manifest,
    ShardEntry,
    lengths_path,
    read_length_spans,
    read_manifest,
)
from megabert.tokens.shards.format import MAX_BATCH_ROWS, ShardMetadata, token_type
from megabert.tokens.shards.shard_file import BUILD_AGAIN, ShardFile, find_nonsense
from megabert.tokens.tokenization.huggingface import copy_tokenizer, load_tokenizer


def _most_open_shards(descriptors: int) -> int:
    """Return how many shards are held open at once: opening one costs more than reading a row.

    Args:
        descriptors: How many a process may have. Each shard takes one, and so do the sockets of all other ranks; a run
            of two phases has four sets of shards, which together get a quarter.
    """
    return 256 if descriptors == resource.RLIM_INFINITY else max(1, min(256, descriptors // 16))


OPEN_SHARDS = _most_open_shards(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""Shards that are held open at once for each of four sets."""


class Sizes(NamedTuple):
    """How long instances are, in 16 bits: a large batch of 64 would be memory that malloc takes anew each time."""

    lengths: NDArray[np.uint16]
    """Tokens of each."""
    masked_counts: NDArray[np.uint16]
    """Positions to predict in each; 0 if the loader makes the masks."""


class ShardSet:
    """The shards of one split, in the order of the manifest that numbers rows globally."""

    def __init__(self, folder: Path, split: str, manifest: Manifest, *more: "ShardSet") -> None:
        """Number the shards of a folder, and after them the shards of other sets, which then are read as one set.

        Args:
            folder: The folder.
            split: ``train`` or ``validation``.
            manifest: Its manifest.
            *more: Sets with the same settings.
        """
        self.folder, self.split, self.manifest = folder, split, manifest
        own = _Folder(folder, manifest.metadata)
        self._files = [(own, shard) for shard in manifest.of_split(split)]
        self._files += [file for others in more for file in others._files]
        self.shards: list[ShardEntry] = [shard for _, shard in self._files]
        self._starts: NDArray[np.int64] = np.cumsum([0, *(shard.rows for shard in self.shards)])
        """Global row at which each shard starts; the last is the number of rows."""

    @classmethod
    def open(cls, folder: str | Path, split: str = "train") -> "ShardSet":
        """Read the manifest; shards are opened when they are needed.

        Args:
            folder: A finished folder of instance shards, ``.../instances/LENGTH``.
            split: ``train`` or ``validation``.

        Raises:
            DataError: If there is no manifest, it lists no shards or instances of this split, or a file is missing.
        """
        shard_set = cls(Path(folder), split, read_manifest(folder))
        if not shard_set.num_rows:
            or_more = ", or with a larger --validation-share" if split == "validation" else ""
            raise DataError(
                f"{folder}: the manifest lists no instances of split {split!r}. Build shards from more text{or_more}."
            )
        return shard_set

    @property
    def place(self) -> str:
        """Folder or URL that the shards come from, for messages."""
        return place_of(self.folder)

    @property
    def metadata(self) -> ShardMetadata:
        """The properties of all shards: objective, max_seq_length, vocab_size, special_ids, tokenizer_sha256, ..."""
        return self.manifest.metadata

    @property
    def num_rows(self) -> int:
        """Number of instances of the split."""
        return int(self._starts[-1])

    @property
    def statistics(self) -> InstanceStatistics:
        """Totals of the split as the manifest states them; masks that the loader makes are estimated from above."""
        stated = InstanceStatistics(
            rows=self.num_rows,
            tokens=sum(shard.tokens for shard in self.shards),
            masked_tokens=sum(shard.masked_tokens for shard in self.shards),
            max_seq_length=self.metadata.max_seq_length,
            max_masked=max(1, self.metadata.max_predictions_per_seq),
        )
        return stated if self.has_masks else stated.masked_by(self.metadata.masking_options)

    def statistics_in(self, phase: PhaseConfig) -> InstanceStatistics:
        """Return the totals of the split under the masks of a phase."""
        masking = self.masking_in(phase)
        return self.statistics if masking is None else self.statistics.masked_by(masking)

    @property
    def has_masks(self) -> bool:
        """Whether the shards hold the masks; else the loader makes them (`step_packer`)."""
        return self.metadata.masking != "dynamic"

    def masking_in(self, phase: PhaseConfig, batch: int | None = None) -> MaskingOptions | None:
        """Return how the loader masks the instances of a phase; None if the shards hold the masks.

        The shards' mask unit stays. Their cap on predictions is for their own share, so it is scaled with the phase's.

        Args:
            phase: The phase; its shares come before the shards' own.
            batch: Number of a batch in it; None for the greatest share of the phase.
        """
        if self.has_masks:
            return None
        options = replace(self.metadata.masking_options, rarity=phase.masked_lm_rarity or 0.0)
        drawn = phase.masked_lm_range
        share = phase.most_masked if batch is None or drawn else phase.masked_share(batch)
        if share is not None:
            most = math.ceil(options.max_predictions_per_seq * share / options.masked_lm_prob)
            options = replace(
                options,
                masked_lm_prob=share,
                least_masked_lm_prob=drawn and drawn[0],
                max_predictions_per_seq=min(most, self.metadata.max_seq_length),
            )
        return options if phase.mask_actions is None else replace(options, actions=phase.mask_actions)

    @property
    def tokenizer_dir(self) -> Path:
        """Folder of the tokenizer that the shards were built with."""
        return self.folder / "tokenizer"

    def check_tokenizer(self) -> None:
        """Check that the tokenizer next to the shards is the one that they were built with.

        Raises:
            DataError: If there is none, or another one, or a file of it is damaged.
        """
        source, recorded = self.tokenizer_dir, self.metadata.tokenizer_sha256
        remedy = "Copy the tokenizer of the build back, or build the shards again."
        if not source.is_dir():
            raise DataError(f"{source}: not there. {remedy}")
        own = load_tokenizer(source).sha256
        if own != recorded:
            raise DataError(
                f"{source}: is not the tokenizer that the shards were built with (SHA-256 {own[:12]}, recorded "
                f"{recorded[:12]}). {remedy}"
            )

    def copy_tokenizer(self, destination: Path) -> None:
        """Copy the tokenizer from next to the shards, whole or not at all; an existing copy is kept.

        Raises:
            DataError: If one of its files is a link to another place.
        """
        if not destination.exists():
            with publish_folder(destination) as folder:
                copy_tokenizer(self.tokenizer_dir, folder)

    def sizes(self, spans: tuple[tuple[int, int], ...]) -> Sizes:
        """Return how long the instances of ranges of global rows are, without reading them if there is an index.

        Args:
            spans: Ranges (first, stop), which may run over the ends of shards.

        Raises:
            DataError: If there is no index, and a shard cannot be read or contradicts the manifest.
        """
        places = [place for span in spans for place in self._by_shard(*span)]
        kinds = self.kinds
        wanted = [LengthsSpan(self._path(index), self.shards[index].rows, *span) for index, *span in places]
        # Indices that are read together are open together.
        groups = (wanted[start : start + OPEN_SHARDS] for start in range(0, len(wanted), OPEN_SHARDS))
        stored = [part for group in groups for part in read_length_spans(group, kinds)]
        values, first = np.zeros((sum(end - begin for _, begin, end in places), 2), np.uint16), 0
        for place, part in zip(places, stored, strict=True):
            stop = first + place[2] - place[1]
            values[first:stop, :kinds] = self.measure(*place)[:, :kinds] if part is None else part
            first = stop
        return Sizes(values[:, 0], values[:, 1])

    def measure(self, index: int, begin: int, end: int) -> NDArray[np.uint16]:
        """Return tokens and positions to predict, shape (rows, 2), of a part of a shard from the shard itself.

        Args:
            index: The shard.
            begin: First row, counted from the shard's first.
            end: One past the last row.

        Raises:
            DataError: As for `rows`.
        """
        start = int(self._starts[index])
        sizes = [np.empty((0, 2), np.uint16)]
        for first in range(begin, end, MAX_BATCH_ROWS):
            part = self.rows(np.arange(start + first, start + min(first + MAX_BATCH_ROWS, end)))
            sizes.append(np.stack([part.lengths, np.diff(part.masked_starts)], axis=1).astype(np.uint16))
        return np.concatenate(sizes)

    def columns(self, spans: tuple[tuple[int, int], ...]) -> FlatInstances:
        """Read ranges of global rows (first, stop), in the given order; they may run over the ends of shards.

        Raises:
            DataError: As for `rows`.
        """
        return self.rows(np.concatenate([np.arange(first, stop) for first, stop in spans]))

    def rows(self, rows: NDArray[np.int64], sizes: Sizes | None = None) -> FlatInstances:
        """Read instances; cheapest if the rows ascend, because each record batch is then looked up once.

        Args:
            rows: Global rows, in the order in which they are returned.
            sizes: The result of `sizes` for them; by default it is not compared.

        Raises:
            DataError: If a shard cannot be read, contradicts the manifest or the sizes, or holds instances that nobody
                can train on.
        """
        metadata = self.metadata
        instances = FlatInstances.with_room(
            rows,
            tokens=metadata.max_seq_length,
            masked=metadata.max_predictions_per_seq,
            token=token_type(metadata.vocab_size).to_pandas_dtype(),
        )
        self._copy(instances)
        instances = instances.without_room()
        if (nonsense := find_nonsense(instances, metadata)) is not None:
            index, inside = self._place_of(int(rows[nonsense[0]]))
            raise self._open(index).damaged(f"row {inside}: {nonsense[1]}", BUILD_AGAIN)
        if sizes is not None:
            wrong = instances.lengths != sizes.lengths
            if self.has_masks:
                wrong |= np.diff(instances.masked_starts) != sizes.masked_counts
            if wrong.any():  # the packing goes by the index
                index, inside = self._place_of(int(rows[wrong.argmax()]))
                what = f"says another length of row {inside} than the shard. Delete it: the next start writes it again."
                raise DataError(f"{lengths_path(self._path(index))}: {what}")
        return instances

    @property
    def kinds(self) -> int:
        """Numbers per instance in the lengths index: its tokens and, if the shards hold the masks, its predictions."""
        return 2 if self.has_masks else 1

    def _copy(self, instances: FlatInstances) -> None:
        """Copy rows out of their shards; only the layout of the record batches is checked."""
        from megabert.tokens.shards.copy_loops import copy_mapped_rows, locate

        rows = instances.rows
        numbers, inside = np.empty_like(rows), np.empty_like(rows)
        runs = runs_of(np.searchsorted(self._starts, rows, side="right") - 1)
        # All batches are asked for before the first one is read, so that the system reads many at a time.
        for index, first, stop in runs:
            file, part = self._open(index), slice(first, stop)
            in_shard = rows[part] - self._starts[index]
            file.prefetch(locate(file.mapped, in_shard, numbers[part], inside[part]))
        for index, first, stop in runs:
            file, part = self._open(index), slice(first, stop)
            copied = copy_mapped_rows(file.mapped, numbers[part], inside[part], first, instances)
            if copied < stop:
                raise file.explain(int(numbers[copied]), int(inside[copied]))

    def _path(self, index: int) -> Path:
        folder, shard = self._files[index]
        return folder.path / shard.file

    def _open(self, index: int) -> ShardFile:
        return _opened(*self._files[index])

    def _place_of(self, row: int) -> tuple[int, int]:
        """Return the shard that a global row is in, and its number there."""
        index = int(np.searchsorted(self._starts, row, side="right")) - 1
        return index, row - int(self._starts[index])

    def _by_shard(self, first: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield (shard, its first row, the row after its last) for a range of global rows, shard by shard."""
        while first < stop:
            index = int(np.searchsorted(self._starts, first, side="right")) - 1
            start, end = int(self._starts[index]), min(stop, int(self._starts[index + 1]))
            yield index, first - start, end - start
            first = end


@dataclass(eq=False)
class _Folder:
    """A folder of shards."""

    path: Path
    metadata: ShardMetadata
    schema: bytes | None = None
    """Schema of the first shard that was opened, which agrees with the metadata."""


@lru_cache(maxsize=4 * OPEN_SHARDS)
def _opened(folder: _Folder, shard: ShardEntry) -> ShardFile:
    """Return an open shard, for which the least recently used one of all sets is closed."""
    fetch_files(folder.path, [shard.file])
    file = ShardFile(folder.path / shard.file, shard, folder.metadata, folder.schema)
    folder.schema = folder.schema or file.schema
    return file


def runs_of(values: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Return runs of equal values: the value, the run's first index, and its end (exclusive)."""
    if not len(values):
        return []
    cuts = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist()]
    return list(zip(values[cuts].tolist(), cuts, [*cuts[1:], len(values)], strict=True))
