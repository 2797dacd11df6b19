"""Instances by global row: which shard and record batch each is in, which of these are open, and copies of rows."""

import resource
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from megabert.errors import DataError
from megabert.shards import FlatBatch, ShardEntry, ShardMetadata, find_nonsense, token_type
from megabert.shards.shard_file import OpenBatch, ShardFile, UnevenBatchesError

Result = TypeVar("Result")


def _most_open_shards(descriptors: int) -> int:
    """Return how many shards are held open at once: opening one costs more than reading a row.

    Args:
        descriptors: How many a process may have. Each shard takes one, and so do the sockets of all other ranks; a run
            of two phases has four sets of shards, which together get a quarter.
    """
    return 256 if descriptors == resource.RLIM_INFINITY else max(1, min(256, descriptors // 16))


OPEN_SHARDS = _most_open_shards(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""Shards of a set that are held open at once."""
_OPEN_BATCHES = 4096
"""Record batches that are kept open; opening one costs more than copying a row from it."""
_HELD_BYTES = 384 * 2**20
"""Memory for record batches that had to be decompressed..."""
_FEWEST_HELD = 2 * 8
"""...but that of a window at least: eight blocks of 8,192 rows touch two compressed batches each."""


class Columns(NamedTuple):
    """Decoded instances. Lists are stored flat, end to end, with an array that says where each instance's starts.

    It is a NamedTuple, so that a compiled loop can take it.

    Attributes:
        input_ids: Uint16 or uint32, the tokens of all instances.
        token_starts: Int64 of shape (rows + 1,), where each instance's tokens start, and the end.
        segment_b_starts: Int64 of shape (rows,), the index in its instance of segment B's first token.
        masked_positions: Uint16, all positions to predict, counted from the start of their instance.
        masked_ids: The original ids of these positions.
        masked_starts: Int64 of shape (rows + 1,), where each instance's masked positions start, and the end.
        next_sentence_labels: Int64 of shape (rows,), 1 where segment B is random (or, for SOP, swapped).
        rows: Int64 of shape (rows,), the global row of each instance.
    """

    input_ids: NDArray
    token_starts: NDArray[np.int64]
    segment_b_starts: NDArray[np.int64]
    masked_positions: NDArray[np.integer]
    masked_ids: NDArray
    masked_starts: NDArray[np.int64]
    next_sentence_labels: NDArray[np.int64]
    rows: NDArray[np.int64]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each instance."""
        return np.diff(self.token_starts)

    def lengths_of(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of tokens of some instances."""
        return self.token_starts[indices + 1] - self.token_starts[indices]

    def masked_counts_of(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of positions to predict in some instances."""
        return self.masked_starts[indices + 1] - self.masked_starts[indices]


class Sizes(NamedTuple):
    """How long instances are, in 16 bits: a large batch of 64 would be memory that malloc takes anew each time."""

    lengths: NDArray[np.uint16]
    """Tokens of each."""
    masked_counts: NDArray[np.uint16]
    """Positions to predict in each; 0 where the loader makes the masks."""


class RowReader:
    """Reads rows of the shards of a split. It is not safe for several threads at a time."""

    def __init__(self, folder: Path, shards: list[ShardEntry], metadata: ShardMetadata) -> None:
        """Open nothing yet.

        Args:
            folder: Folder of the shards.
            shards: The shards, in the order that numbers the rows.
            metadata: What the manifest says of all of them.
        """
        self.starts: NDArray[np.int64] = np.cumsum([0, *(shard.rows for shard in shards)])
        """Global row at which each shard starts; the last is the number of rows."""
        self.paths = [folder / shard.file for shard in shards]
        """Where the shards are."""
        self._shards, self._metadata = shards, metadata
        self._files: OrderedDict[int, ShardFile] = OrderedDict()
        self._batches: OrderedDict[tuple[int, int], OpenBatch] = OrderedDict()
        self._batch_starts: dict[int, NDArray[np.int64]] = {}
        """Where record batches start in shards that were uneven. It outlives the open file: one read may need more
        shards than stay open, and would never end if it found that out again each time."""
        self._held_bytes = 0
        self._schema: bytes | None = None

    def read(self, rows: NDArray[np.int64]) -> Columns:
        """Read instances; cheapest where the rows ascend, because each record batch is then looked up once.

        Args:
            rows: Global rows, in the order in which they are returned.

        Raises:
            DataError: If a shard cannot be read, contradicts the manifest, or holds instances that nobody can train on.
        """
        columns = _again_if_uneven(lambda: self._gathered(rows))
        columns = columns._replace(
            input_ids=columns.input_ids[: columns.token_starts[-1]],
            masked_positions=columns.masked_positions[: columns.masked_starts[-1]],
            masked_ids=columns.masked_ids[: columns.masked_starts[-1]],
        )
        nonsense = find_nonsense(_flat(columns), self._metadata)
        if nonsense is not None:
            raise self._nonsense(int(rows[nonsense[0]]), nonsense[1])
        return columns

    def sizes(self, index: int, begin: int, end: int) -> Sizes:
        """Return the lengths of a part of a shard from the shard itself.

        Args:
            index: The shard.
            begin: First row, counted from the shard's first.
            end: The row behind the last.
        """
        return _again_if_uneven(lambda: self._measured(index, begin, end))

    def _gathered(self, rows: NDArray[np.int64]) -> Columns:
        from megabert.shards.copy_loops import copy_mapped_rows, locate

        # All batches are asked for before the first one is read, so that the system reads many at a time.
        numbers, inside = np.empty_like(rows), np.empty_like(rows)
        runs = _runs(np.searchsorted(self.starts, rows, side="right") - 1)
        for index, begin, end in runs:
            file, part = self._open(index), slice(begin, end)
            in_shard = rows[part] - self.starts[index]
            file.prefetch(locate(file.layout, in_shard, numbers[part], inside[part]))

        columns, filled = self._room_for(rows), 0
        for index, _, end in runs:
            file, part = self._open(index), slice(filled, end)
            filled = copy_mapped_rows(file.mapped, file.batch_starts, numbers[part], inside[part], filled, columns)
            # What is left is compressed, of another layout, or damaged.
            for number, first, stop in _runs(numbers[filled:end]):
                filled = self._copy(index, number, inside[filled : filled + stop - first], filled, columns)
        return columns

    def _measured(self, index: int, begin: int, end: int) -> Sizes:
        starts = self._open(index).batch_starts
        first, last = np.searchsorted(starts, [begin, end - 1], side="right") - 1
        parts = []
        for number in range(first, last + 1):
            batch, start = self._open_batch(index, number).columns, int(starts[number])
            part = slice(max(begin - start, 0), end - start)
            parts.append((np.diff(batch.offsets)[part], np.diff(batch.ends_M)[part]))
        # Longer ones are no instances, and refused where they are read.
        most = np.iinfo(np.uint16).max
        lengths, masked_counts = (np.minimum(np.concatenate(values), most) for values in zip(*parts, strict=True))
        return Sizes(lengths.astype(np.uint16), masked_counts.astype(np.uint16))

    def place_of(self, row: int) -> tuple[int, int]:
        """Return the shard that a global row is in, and its number there."""
        index = int(np.searchsorted(self.starts, row, side="right")) - 1
        return index, row - int(self.starts[index])

    def by_shard(self, first: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield (shard, its first row, the one behind its last) for a range of global rows, shard by shard."""
        while first < stop:
            index = int(np.searchsorted(self.starts, first, side="right")) - 1
            start, end = int(self.starts[index]), min(stop, int(self.starts[index + 1]))
            yield index, first - start, end - start
            first = end

    def _room_for(self, rows: NDArray[np.int64]) -> Columns:
        """Return columns with room for the longest lists that the manifest allows.

        Memory that is never written is never taken from the system.
        """
        metadata, count = self._metadata, len(rows)
        token = token_type(metadata.vocab_size).to_pandas_dtype()
        return Columns(
            input_ids=np.empty(count * metadata.max_seq_length, token),
            token_starts=np.zeros(count + 1, np.int64),
            segment_b_starts=np.empty(count, np.int64),
            masked_positions=np.empty(count * metadata.max_predictions_per_seq, np.uint16),
            masked_ids=np.empty(count * metadata.max_predictions_per_seq, token),
            masked_starts=np.zeros(count + 1, np.int64),
            next_sentence_labels=np.empty(count, np.int64),
            rows=rows,
        )

    def _copy(self, index: int, number: int, inside: NDArray[np.int64], filled: int, columns: Columns) -> int:
        """Append rows of a record batch, numbered inside it, to columns; return how many these have then."""
        from megabert.shards.copy_loops import copy_rows

        batch = self._open_batch(index, number).columns
        end: int = copy_rows(batch, inside, filled, columns)
        if end < filled + len(inside):
            row = int(inside[end - filled])
            _, what = find_nonsense(_row_of(batch, row), self._metadata) or (0, "is too long")
            raise self._nonsense(int(columns.rows[end]), what)
        return end

    def _open(self, index: int) -> ShardFile:
        """Return an open shard; the one that was used longest ago is closed for it."""
        if index not in self._files:
            shard = self._shards[index]
            file = ShardFile(self.paths[index], shard, self._metadata, self._schema, self._batch_starts.get(index))
            self._schema = self._schema or file.schema
            self._files[index] = file
            if len(self._files) > OPEN_SHARDS:
                closed, _ = self._files.popitem(last=False)
                for key in [key for key in self._batches if key[0] == closed]:
                    self._close_batch(key)
        self._files.move_to_end(index)
        return self._files[index]

    def _open_batch(self, index: int, number: int) -> OpenBatch:
        """Return an open record batch; those used longest ago are closed where there are too many or too large ones."""
        key = index, number
        if key not in self._batches:
            file = self._open(index)
            try:
                self._batches[key] = batch = file.read(number)
            except UnevenBatchesError:
                self._batch_starts[index] = file.batch_starts
                raise
            self._held_bytes += batch.held_bytes
            while len(self._batches) > _OPEN_BATCHES or (
                self._held_bytes > _HELD_BYTES and len(self._batches) > _FEWEST_HELD
            ):
                self._close_batch(next(iter(self._batches)))
        self._batches.move_to_end(key)
        return self._batches[key]

    def _close_batch(self, key: tuple[int, int]) -> None:
        self._held_bytes -= self._batches.pop(key).held_bytes

    def _nonsense(self, row: int, what: str) -> DataError:
        index, inside = self.place_of(row)
        remedy = "Build the shards again, or correct the program that wrote them (docs/instances.md)."
        return self._open(index).damaged(f"row {inside}: {what}", remedy)


def _again_if_uneven(read: Callable[[], Result]) -> Result:
    """Read, and begin again where record batches are not of the expected size, which is once for each shard."""
    while True:
        with suppress(UnevenBatchesError):
            return read()


def _flat(columns: Columns) -> FlatBatch:
    """Return columns in the form in which instances are checked."""
    return FlatBatch(
        ids_T=columns.input_ids,
        offsets=columns.token_starts,
        b_start_R=columns.segment_b_starts,
        positions_M=columns.masked_positions,
        ends_M=columns.masked_starts,
        originals_M=columns.masked_ids,
        ends_originals=columns.masked_starts,
        label_R=columns.next_sentence_labels,
    )


def _row_of(batch: FlatBatch, row: int) -> FlatBatch:
    """Return one row of a batch."""

    def part(values: NDArray[np.integer], starts: NDArray[np.integer]) -> tuple[NDArray[np.integer], NDArray[np.int64]]:
        first, stop = starts[row : row + 2].tolist()
        return values[first:stop], np.array([0, stop - first])

    return FlatBatch(
        *part(batch.ids_T, batch.offsets),
        batch.b_start_R[row : row + 1],
        *part(batch.positions_M, batch.ends_M),
        *part(batch.originals_M, batch.ends_originals),
        batch.label_R[row : row + 1],
    )


def _runs(values: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Return runs of equal values: the value, where the run begins and where it ends."""
    if not len(values):
        return []
    cuts = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist()]
    return list(zip(values[cuts].tolist(), cuts, [*cuts[1:], len(values)], strict=True))
