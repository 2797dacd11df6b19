"""The instance shards of one split, memory-mapped and read by ranges of global rows."""

import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megabert.data.packing import InstanceStatistics
from megabert.errors import DataError
from megabert.schema import (
    Manifest,
    ShardEntry,
    ShardMetadata,
    find_nonsense,
    publish_folder,
    read_batch,
    read_manifest,
    sha256_file,
    token_type,
)

_OPEN_SHARDS = 64
"""Memory maps that are held open at once."""
_CACHED_RANGES = 3
"""Decoded sets of ranges that are kept: the window being read, the next one, and one to spare."""
_LABEL_COLUMN = 4
"""Index of the smallest column, which tells a batch's rows without decoding the others."""

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


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


class ShardSet:
    """The shards of one split, in the order of the manifest that numbers rows globally."""

    def __init__(self, folder: Path, split: str, manifest: Manifest):
        self.folder = folder
        self.split = split
        self.manifest = manifest
        self.shards: list[ShardEntry] = manifest.of_split(split)
        self.starts: NDArray[np.int64] = np.cumsum([0, *(shard.rows for shard in self.shards)])
        """Global row at which each shard starts; the last is the number of rows."""
        self._readers: OrderedDict[int, tuple[pa.RecordBatchFileReader, NDArray[np.int64]]] = OrderedDict()
        self._decoded: OrderedDict[tuple[tuple[int, int], ...], Columns] = OrderedDict()
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
            raise DataError(
                f"{folder}: the manifest lists no instances of split {split!r}. Build shards from more text, or with "
                "a larger held-out share if this is the validation split."
            )
        return shard_set

    @property
    def metadata(self) -> ShardMetadata:
        """What is true of all shards: objective, max_seq_length, vocab_size, special_ids, tokenizer_sha256, ..."""
        return self.manifest.metadata

    @property
    def num_rows(self) -> int:
        """Number of instances of the split."""
        return int(self.starts[-1])

    @property
    def statistics(self) -> InstanceStatistics:
        """Totals of the split as the manifest states them; masks that the loader makes are estimated from above."""
        tokens = sum(shard.tokens for shard in self.shards)
        masked = sum(shard.masked_tokens for shard in self.shards)
        if self.metadata.masking == "dynamic":
            most = self.metadata.max_predictions_per_seq * self.num_rows
            masked = min(most, round(self.metadata.masked_lm_prob * tokens + 0.5 * self.num_rows))
        return InstanceStatistics(
            rows=self.num_rows,
            tokens=tokens,
            masked_tokens=masked,
            max_seq_length=self.metadata.max_seq_length,
            max_masked=max(1, self.metadata.max_predictions_per_seq),
        )

    def verify(self, indices: Iterable[int] | None = None, *, with_content: bool = True) -> None:
        """Hash shards and compare with the manifest, then check what is in them.

        Args:
            indices: The shards to check; all by default. Ranks can share the work: ``range(rank, len(shards), size)``.
            with_content: Whether to decode the shards as well. Where bytes with this hash were found sound before, the
                hash suffices.

        Raises:
            DataError: For the first shard whose bytes differ, or that holds instances which nobody can train on.
        """
        for index in range(len(self.shards)) if indices is None else indices:
            shard = self.shards[index]
            digest = sha256_file(self.folder / shard.file)
            if digest != shard.sha256:
                raise DataError(
                    f"{self.folder / shard.file}: SHA-256 is {digest}, the manifest says {shard.sha256}: the shard was "
                    "damaged or replaced. Copy it again, or delete it and run the same `megabert-data build` command.",
                    see="a-shard-is-missing-or-damaged",
                )
            if with_content:
                self._check_content(index)

    def _check_content(self, index: int) -> None:
        """Decode a shard and count, batch by batch: a manifest may vouch for bytes that make no sense."""
        shard, (reader, batch_starts) = self.shards[index], self._open(index)
        batches = (self._read(index, reader, number, int(first)) for number, first in enumerate(batch_starts[:-1]))
        counts = [(len(batch["input_ids"].flatten()), len(batch["masked_lm_ids"].flatten())) for batch in batches]
        tokens, masked = np.array(counts, np.int64).reshape(-1, 2).sum(axis=0).tolist()
        if (tokens, masked) != (shard.tokens, shard.masked_tokens):
            raise self._damaged(
                index,
                f"it has {tokens} tokens, {masked} of them to predict; the manifest says {shard.tokens} and "
                f"{shard.masked_tokens}",
            )

    def copy_tokenizer(self, destination: Path) -> None:
        """Copy the tokenizer's folder from next to the shards, whole or not at all; an existing copy is kept.

        Raises:
            DataError: If there is no tokenizer next to the shards.
        """
        source = self.folder / "tokenizer"
        if not source.is_dir():
            raise DataError(f"{source}: not there. Copy the tokenizer of the build back, or build the shards again.")
        if destination.exists():
            return
        with publish_folder(destination) as folder:
            shutil.copytree(source, folder, dirs_exist_ok=True)

    def columns(self, spans: tuple[tuple[int, int], ...]) -> Columns:
        """Decode ranges of global rows, in the given order; the last few sets of ranges are kept in memory.

        Args:
            spans: Ranges (first, stop), which may run over the ends of shards.

        Raises:
            DataError: If a shard cannot be read or contradicts the manifest.
        """
        with self._lock:
            return _recent(self._decoded, spans, self._decode, _CACHED_RANGES)

    def _decode(self, spans: tuple[tuple[int, int], ...]) -> Columns:
        # Room for the longest lists that the manifest allows. One record batch after the other is decompressed and
        # copied there, so that memory holds the window once, and not once more in Arrow's form.
        rows, metadata = sum(stop - first for first, stop in spans), self.metadata
        token = token_type(metadata.vocab_size).to_pandas_dtype()
        tokens = _Lists(rows, metadata.max_seq_length, token)
        positions = _Lists(rows, metadata.max_predictions_per_seq, np.uint16)
        ids = _Lists(rows, metadata.max_predictions_per_seq, token)
        b_starts, labels = np.empty(rows, np.int64), np.empty(rows, np.int64)
        row = 0
        for batch in (batch for first, stop in spans for batch in self._batches(first, stop)):
            tokens.append(batch.column("input_ids"))
            positions.append(batch.column("masked_lm_positions"))
            ids.append(batch.column("masked_lm_ids"))
            b_starts[row : row + len(batch)] = batch.column("segment_b_start")
            labels[row : row + len(batch)] = batch.column("next_sentence_label")
            row += len(batch)
        return Columns(
            input_ids=tokens.values,
            token_starts=tokens.starts,
            segment_b_starts=b_starts,
            masked_positions=positions.values,
            masked_ids=ids.values,
            masked_starts=positions.starts,
            next_sentence_labels=labels,
            rows=np.concatenate([np.arange(first, stop) for first, stop in spans]),
        )

    def _batches(self, first: int, stop: int) -> Iterable[pa.RecordBatch]:
        """Yield the record batches, cut to size, that hold a range of global rows."""
        while first < stop:
            # The shard that holds row ``first``, the record batch in it, and the rows of that which are in the range.
            index = int(np.searchsorted(self.starts, first, side="right")) - 1
            reader, batch_starts = _recent(self._readers, index, self._open, _OPEN_SHARDS)
            local = first - int(self.starts[index])
            number = int(np.searchsorted(batch_starts, local, side="right")) - 1
            begin = local - int(batch_starts[number])
            count = min(stop - first, int(batch_starts[number + 1]) - local)
            yield self._read(index, reader, number, int(batch_starts[number])).slice(begin, count)
            first += count

    def _read(self, index: int, reader: pa.RecordBatchFileReader, number: int, first: int) -> pa.RecordBatch:
        """Return a record batch whose first row is row ``first`` of its shard, once it is known to make sense."""
        try:
            batch = read_batch(reader, number)
        except DataError as error:
            raise self._damaged(index, str(error)) from error
        nonsense = find_nonsense(batch, self.metadata)
        if nonsense is not None:
            remedy = "Build the shards again, or correct the program that wrote them (docs/instances.md)."
            raise self._damaged(index, f"row {first + nonsense[0]}: {nonsense[1]}", remedy)
        return batch

    def _open(self, index: int) -> tuple[pa.RecordBatchFileReader, NDArray[np.int64]]:
        """Return a shard's reader and the rows, within the shard, at which its batches start."""
        path = self.folder / self.shards[index].file
        try:
            source = pa.memory_map(str(path))
            # One thread decodes: the ranks of a node share its cores, and the loader has a whole step's time.
            reader = pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(use_threads=False))
            metadata = ShardMetadata.from_arrow(reader.schema, str(path))
            labels = pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(included_fields=[_LABEL_COLUMN]))
            sizes = [labels.get_batch(number).num_rows for number in range(labels.num_record_batches)]
        except (pa.ArrowException, OSError, SystemError) as error:
            raise self._damaged(index, f"it cannot be read as an Arrow file ({str(error).splitlines()[0]})") from error
        other = [name for name, value in vars(metadata).items() if value != getattr(self.metadata, name)]
        if other:
            raise self._damaged(
                index,
                f"its metadata differ from the manifest's: {other[0]} is {getattr(metadata, other[0])!r} and "
                f"{getattr(self.metadata, other[0])!r}",
            )
        if sum(sizes) != self.shards[index].rows:
            raise self._damaged(index, f"it has {sum(sizes)} rows, the manifest says {self.shards[index].rows}")
        return reader, np.cumsum([0, *sizes])

    def _damaged(
        self,
        index: int,
        what: str,
        remedy: str = "Copy the shard again, or delete it and run the same `megabert-data build` command.",
    ) -> DataError:
        return DataError(f"{self.folder / self.shards[index].file}: {what}. {remedy}")


def _recent(cache: OrderedDict[Key, Value], key: Key, make: Callable[[Key], Value], most: int) -> Value:
    """Return a key's value, made where it is missing; one too many pushes out the one that was used longest ago."""
    if key not in cache:
        cache[key] = make(key)
        if len(cache) > most:
            cache.popitem(last=False)
    cache.move_to_end(key)
    return cache[key]


class _Lists:
    """A list column that is filled batch by batch, so that only one batch at a time is held decompressed."""

    def __init__(self, rows: int, longest: int, dtype: type) -> None:
        """Reserve the room that the column may need; memory that is never written is never taken from the system."""
        self._values: NDArray = np.empty(rows * longest, dtype)
        self.starts: NDArray[np.int64] = np.zeros(rows + 1, np.int64)
        """Index at which each row's values start, and the end."""
        self._rows = 0

    def append(self, column: pa.ListArray) -> None:
        """Copy the lists of a batch, which are known to be no longer than the manifest allows."""
        values, offsets, end = column.flatten(), column.offsets.to_numpy(), self.starts[self._rows]
        self._values[end : end + len(values)] = values
        # A slice of a batch keeps the offsets of the whole: they count from its first one.
        np.add(offsets[1:], end - offsets[0], out=self.starts[self._rows + 1 : self._rows + len(offsets)])
        self._rows += len(column)

    @property
    def values(self) -> NDArray:
        """Values of all rows, end to end."""
        return self._values[: self.starts[-1]]
