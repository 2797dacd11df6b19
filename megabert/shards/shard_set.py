"""The instance shards of one split, by global rows: all lengths ahead of time, then the instances that are needed."""

import math
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from megabert.config.phase import PhaseConfig
from megabert.errors import DataError
from megabert.masking import MaskingOptions
from megabert.shards import (
    LengthsSpan,
    Manifest,
    ShardEntry,
    ShardMetadata,
    lengths_path,
    read_length_spans,
    read_manifest,
)
from megabert.shards.format import FlatInstances
from megabert.shards.row_reader import OPEN_SHARDS, RowReader, Sizes
from megabert.shards.statistics import InstanceStatistics
from megabert.tokenization.huggingface import copy_tokenizer, load_tokenizer
from megabert.whole_folders import publish_folder


class ShardSet:
    """The shards of one split, in the order of the manifest that numbers rows globally."""

    def __init__(self, folder: Path, split: str, manifest: Manifest):
        self.folder = folder
        self.split = split
        self.manifest = manifest
        self.shards: list[ShardEntry] = manifest.of_split(split)
        self._reader = RowReader(folder, self.shards, manifest.metadata)
        self._lock = threading.Lock()

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
    def metadata(self) -> ShardMetadata:
        """The properties of all shards: objective, max_seq_length, vocab_size, special_ids, tokenizer_sha256, ..."""
        return self.manifest.metadata

    @property
    def num_rows(self) -> int:
        """Number of instances of the split."""
        return int(self._reader.starts[-1])

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
        """Whether the shards hold the masks; else the loader makes them (`dynamic_masking`)."""
        return self.metadata.masking != "dynamic"

    def masking_in(self, phase: PhaseConfig) -> MaskingOptions | None:
        """Return how the loader masks the instances of a phase; None if the shards hold the masks.

        The shards' mask unit stays. Their cap on predictions is for their own share, so it is scaled with the phase's.
        """
        if self.has_masks:
            return None
        options = self.metadata.masking_options
        if phase.masked_lm_prob is not None:
            most = math.ceil(options.max_predictions_per_seq * phase.masked_lm_prob / options.masked_lm_prob)
            options = replace(
                options,
                masked_lm_prob=phase.masked_lm_prob,
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
        places = [place for span in spans for place in self._reader.by_shard(*span)]
        paths, shards, kinds = self._reader.paths, self.shards, self.kinds
        wanted = [LengthsSpan(paths[index], shards[index].rows, begin, end) for index, begin, end in places]
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

        Raises:
            DataError: As for `rows`.
        """
        with self._lock:
            return self._reader.sizes(index, begin, end)

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
        with self._lock:
            columns = self._reader.read(rows)
        if sizes is not None:
            self._compare(columns, sizes)
        return columns

    @property
    def kinds(self) -> int:
        """Numbers per instance in the lengths index: its tokens and, if the shards hold the masks, its predictions."""
        return 2 if self.has_masks else 1

    def _compare(self, columns: FlatInstances, sizes: Sizes) -> None:
        """Raise a DataError if instances are not as long as their index said, which the packing was planned with."""
        wrong = columns.lengths != sizes.lengths
        if self.kinds == 2:
            wrong |= np.diff(columns.masked_starts) != sizes.masked_counts
        if wrong.any():
            index, row = self._reader.place_of(int(columns.rows[wrong.argmax()]))
            raise DataError(
                f"{lengths_path(self.folder / self.shards[index].file)}: says another length of row {row} than the "
                "shard. Delete it: the next start writes it again."
            )
