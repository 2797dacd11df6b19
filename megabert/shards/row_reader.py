"""Instances by global row: which shard and record batch each is in, which shards are open, and copies of rows."""

import resource
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from megabert.shards.folder import ShardEntry
from megabert.shards.format import MAX_BATCH_ROWS, FlatInstances, ShardMetadata, token_type
from megabert.shards.instances import find_nonsense
from megabert.shards.shard_file import BUILD_AGAIN, ShardFile


def _most_open_shards(descriptors: int) -> int:
    """Return how many shards are held open at once: opening one costs more than reading a row.

    Args:
        descriptors: How many a process may have. Each shard takes one, and so do the sockets of all other ranks; a run
            of two phases has four sets of shards, which together get a quarter.
    """
    return 256 if descriptors == resource.RLIM_INFINITY else max(1, min(256, descriptors // 16))


OPEN_SHARDS = _most_open_shards(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""Shards of a set that are held open at once."""


class Sizes(NamedTuple):
    """How long instances are, in 16 bits: a large batch of 64 would be memory that malloc takes anew each time."""

    lengths: NDArray[np.uint16]
    """Tokens of each."""
    masked_counts: NDArray[np.uint16]
    """Positions to predict in each; 0 if the loader makes the masks."""


class RowReader:
    """Reads rows of the shards of a split. It is not safe for several threads at a time."""

    def __init__(self, folder: Path, shards: list[ShardEntry], metadata: ShardMetadata) -> None:
        """Open nothing yet.

        Args:
            folder: Folder of the shards.
            shards: The shards, in the order that numbers the rows.
            metadata: The properties that the manifest states for all of them.
        """
        self.starts: NDArray[np.int64] = np.cumsum([0, *(shard.rows for shard in shards)])
        """Global row at which each shard starts; the last is the number of rows."""
        self.paths = [folder / shard.file for shard in shards]
        """Where the shards are."""
        self._shards, self._metadata = shards, metadata
        self._files: OrderedDict[int, ShardFile] = OrderedDict()
        self._schema: bytes | None = None

    def read(self, rows: NDArray[np.int64]) -> FlatInstances:
        """Read instances; cheapest if the rows ascend, because each record batch is then looked up once.

        Args:
            rows: Global rows, in the order in which they are returned.

        Raises:
            DataError: If a shard cannot be read, contradicts the manifest, or holds instances that nobody can train on.
        """
        instances = self._gathered(rows)
        tokens, masked = instances.token_starts[-1], instances.masked_starts[-1]
        instances = instances._replace(
            input_ids=instances.input_ids[:tokens],
            masked_positions=instances.masked_positions[:masked],
            masked_ids=instances.masked_ids[:masked],
        )
        nonsense = find_nonsense(instances, self._metadata)
        if nonsense is not None:
            index, inside = self.place_of(int(rows[nonsense[0]]))
            raise self._open(index).damaged(f"row {inside}: {nonsense[1]}", BUILD_AGAIN)
        return instances

    def sizes(self, index: int, begin: int, end: int) -> NDArray[np.uint16]:
        """Return tokens and positions to predict, shape (rows, 2), of a part of a shard from the shard itself.

        Args:
            index: The shard.
            begin: First row, counted from the shard's first.
            end: One past the last row.
        """
        start = int(self.starts[index])
        sizes = [np.empty((0, 2), np.uint16)]
        for first in range(begin, end, MAX_BATCH_ROWS):
            part = self.read(np.arange(start + first, start + min(first + MAX_BATCH_ROWS, end)))
            sizes.append(np.stack([part.lengths, np.diff(part.masked_starts)], axis=1).astype(np.uint16))
        return np.concatenate(sizes)

    def _gathered(self, rows: NDArray[np.int64]) -> FlatInstances:
        from megabert.shards.copy_loops import copy_mapped_rows, locate

        # All batches are asked for before the first one is read, so that the system reads many at a time.
        numbers, inside = np.empty_like(rows), np.empty_like(rows)
        runs = _runs(np.searchsorted(self.starts, rows, side="right") - 1)
        for index, begin, end in runs:
            file, part = self._open(index), slice(begin, end)
            in_shard = rows[part] - self.starts[index]
            file.prefetch(locate(file.mapped, in_shard, numbers[part], inside[part]))

        instances, filled = self._room_for(rows), 0
        for index, _, end in runs:
            file, part = self._open(index), slice(filled, end)
            filled = copy_mapped_rows(file.mapped, numbers[part], inside[part], filled, instances)
            if filled < end:
                raise file.explain(int(numbers[filled]), int(inside[filled]))
        return instances

    def place_of(self, row: int) -> tuple[int, int]:
        """Return the shard that a global row is in, and its number there."""
        index = int(np.searchsorted(self.starts, row, side="right")) - 1
        return index, row - int(self.starts[index])

    def by_shard(self, first: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield (shard, its first row, the row after its last) for a range of global rows, shard by shard."""
        while first < stop:
            index = int(np.searchsorted(self.starts, first, side="right")) - 1
            start, end = int(self.starts[index]), min(stop, int(self.starts[index + 1]))
            yield index, first - start, end - start
            first = end

    def _room_for(self, rows: NDArray[np.int64]) -> FlatInstances:
        """Return arrays with room for the longest lists that the manifest allows.

        Memory that is never written is never taken from the system.
        """
        metadata, count = self._metadata, len(rows)
        token = token_type(metadata.vocab_size).to_pandas_dtype()
        masked_starts = np.zeros(count + 1, np.int64)
        return FlatInstances(
            token_starts=np.zeros(count + 1, np.int64),
            input_ids=np.empty(count * metadata.max_seq_length, token),
            segment_b_starts=np.empty(count, np.int64),
            masked_starts=masked_starts,
            masked_positions=np.empty(count * metadata.max_predictions_per_seq, np.uint16),
            masked_id_starts=masked_starts,
            masked_ids=np.empty(count * metadata.max_predictions_per_seq, token),
            next_sentence_labels=np.empty(count, np.int64),
            rows=rows,
        )

    def _open(self, index: int) -> ShardFile:
        """Return an open shard; the one that was used longest ago is closed for it."""
        if index not in self._files:
            file = ShardFile(self.paths[index], self._shards[index], self._metadata, self._schema)
            self._schema = self._schema or file.schema
            self._files[index] = file
            if len(self._files) > OPEN_SHARDS:
                self._files.popitem(last=False)
        self._files.move_to_end(index)
        return self._files[index]


def _runs(values: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Return runs of equal values: the value, where the run begins and where it ends."""
    if not len(values):
        return []
    cuts = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist()]
    return list(zip(values[cuts].tolist(), cuts, [*cuts[1:], len(values)], strict=True))
