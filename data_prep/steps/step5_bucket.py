"""The third stage: documents of all chunks, spread over buckets by their hash, and the index over them.

A bucket is a range of hashes, so the order within and over buckets is that of the hashes: the global shuffle.
Everything later addresses sentences and tokens by their number over all buckets of a split.
"""

# D documents, S sentences, T tokens of a split

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_prep.arrow_files import flat_list, gather, make_list, offsets_of, open_mapped, write_batches
from data_prep.execution.memory import release_pages
from data_prep.execution.work_units import Counts
from data_prep.steps.step3_tokenize import SPLITS, read_documents_of
from megabert.randomness.keyed import mix, string_key, uniform
from megabert.schema import atomic_path

WINDOW_SENTENCES = 1 << 21
"""Part of a split's index that random reads hold in memory at once: 16 MiB."""
INDEX_PARTS = ("buckets", "documents", "sentences")


def bucket_path(folder: Path, split: str, bucket: int) -> Path:
    """Return the file of a bucket of documents."""
    return folder / f"{split}-{bucket:05d}.arrow"


@dataclass(frozen=True)
class BucketTask:
    """All tokenized chunks, and which hashes of which split to gather."""

    sources: tuple[Path, ...]
    split: str
    bucket: int
    buckets: int
    schema: pa.Schema
    path: Path
    weights: tuple[float, ...] = ()
    """Of each source; used for training documents."""
    is_deduplicated: bool = False
    """Whether only the first of documents with the same text is kept."""


def fill_bucket(task: BucketTask) -> tuple[list[Path], Counts]:
    """Write the documents of one bucket, in one record batch so that its tokens are one mapped array."""
    low, high = hash_range(task.bucket, task.buckets)
    split = SPLITS.index(task.split)
    batches = [batch for path in task.sources for batch in read_documents_of(path, split, low, high)]
    schema = task.schema.remove(task.schema.get_field_index("split"))
    if not batches:
        write_batches(task.path, schema, [])
        return [task.path], {"sentences": 0, "tokens": 0}
    hashes, sources = joined(batches, "document_hash"), joined(batches, "source")
    order, counts = _chosen(task, hashes, sources)
    ids, id_offsets = gather_lists([batch["input_ids"] for batch in batches], order)
    lengths, sentence_offsets = gather_lists([batch["sentence_lengths"] for batch in batches], order)
    columns = [
        pa.array(hashes[order]),
        pa.array(sources[order]),
        make_list(ids, id_offsets),
        make_list(lengths, sentence_offsets),
    ]
    write_batches(task.path, schema, [pa.record_batch(columns, schema=schema)])
    single = np.count_nonzero(np.diff(sentence_offsets) == 1)
    counts |= {
        "documents": {task.split: len(order)},
        "documents_by_source": _by_source(sources[order]),
        "tokens_by_source": _by_source(sources[order], np.diff(id_offsets)),
        "sentences": len(lengths),
        "tokens": len(ids),
        "one_sentence_documents": int(single),
    }
    return [task.path], counts


def joined(batches: list[pa.RecordBatch], name: str) -> NDArray:
    """Return a column of numbers over several batches."""
    return np.concatenate([np.asarray(batch[name]) for batch in batches])


def hash_range(number: int, ranges: int) -> tuple[int, int]:
    """Return the first hash of a range of hashes, and of the next one."""
    return (number << 64) // ranges, ((number + 1) << 64) // ranges


def _chosen(task: BucketTask, hashes: NDArray[np.uint64], sources: NDArray[np.uint16]) -> tuple[Any, Counts]:
    """Return the documents to keep, in the order of their hashes, as often as their source's weight says."""
    order = np.lexsort((sources, hashes))
    counts: Counts = {}
    if task.is_deduplicated:
        is_first = np.concatenate([[True], np.diff(hashes[order]) > 0])
        counts["duplicate_documents"] = _by_source(sources[order[~is_first]])
        order = order[is_first]
    if task.split == "train" and any(weight != 1 for weight in task.weights):
        weight = np.array(task.weights)[sources[order]]
        times = np.floor(weight).astype(np.int64)
        times += uniform(mix(hashes[order], string_key("weight"))) < weight - times
        counts["documents_without_weight"] = int(np.count_nonzero(times == 0))
        order = np.repeat(order, times)
    return order, counts


def _by_source(sources: NDArray[np.uint16], sizes: NDArray[np.int64] | None = None) -> dict[str, int]:
    """Return the number of documents of each source that has any, or the sum of their sizes."""
    return {str(index): int(count) for index, count in enumerate(np.bincount(sources, sizes)) if count}


def gather_lists(columns: list[pa.Array], order: NDArray[np.int64]) -> tuple[NDArray[np.integer], NDArray[np.int64]]:
    """Return the values and offsets of a list column over several batches, in another order."""
    flats = [flat_list(column) for column in columns]
    values = np.concatenate([flat for flat, _ in flats])
    lengths = np.concatenate([np.diff(offsets) for _, offsets in flats])
    starts = np.cumsum(lengths) - lengths
    return gather(values, starts[order], lengths[order]), offsets_of(lengths[order])


@dataclass(frozen=True)
class IndexTask:
    """The buckets of a split."""

    folder: Path
    split: str
    buckets: int


def build_index(task: IndexTask) -> tuple[list[Path], Counts]:
    """Write where buckets, documents and sentences of a split start, as three numpy files to be mapped."""
    sizes = np.array([_size(task, bucket) for bucket in range(task.buckets)], np.int64).reshape(-1, 3)
    before = np.concatenate([np.zeros((1, 3), np.int64), np.cumsum(sizes, axis=0)])
    paths = [index_path(task.folder, task.split, part) for part in INDEX_PARTS]
    with contextlib.ExitStack() as stack:
        buckets, documents, sentences = (
            stack.enter_context(open(stack.enter_context(atomic_path(path)), "wb")) for path in paths
        )
        np.save(buckets, before)
        for stream, total in ((documents, before[-1, 0]), (sentences, before[-1, 1])):
            header = {"descr": "<i8", "fortran_order": False, "shape": (int(total) + 1,)}
            np.lib.format.write_array_header_1_0(stream, header)
            stream.write(bytes(8))
        for bucket in range(task.buckets):
            lengths, offsets = _sentences(task, bucket)
            documents.write((offsets[1:] + before[bucket, 1]).astype("<i8").tobytes())
            sentences.write((np.cumsum(lengths, dtype="<i8") + before[bucket, 2]).tobytes())
    return paths, {"documents": int(before[-1, 0])}


def _sentences(task: IndexTask, bucket: int) -> tuple[NDArray[np.integer], NDArray[np.int64]]:
    """Return the tokens of each sentence of a bucket, and where each document's sentences begin among them."""
    reader = open_mapped(bucket_path(task.folder, task.split, bucket))
    if not reader.num_record_batches:
        return np.zeros(0, np.int64), np.zeros(1, np.int64)
    return flat_list(reader.get_batch(0)["sentence_lengths"])


def _size(task: IndexTask, bucket: int) -> tuple[int, int, int]:
    """Return documents, sentences and tokens of a bucket."""
    lengths, offsets = _sentences(task, bucket)
    return len(offsets) - 1, len(lengths), int(lengths.sum(dtype=np.int64))


def index_path(folder: Path, split: str, part: str) -> Path:
    """Return the file of one part of a split's index."""
    return folder / f"{split}-{part}.npy"


@dataclass
class DocumentSet:
    """The documents of a split, mapped: nothing is read before it is used."""

    folder: Path
    split: str
    bucket_starts: NDArray[np.int64]
    """Shape (buckets + 1, 3): documents, sentences and tokens before each bucket."""
    document_starts_D: NDArray[np.int64]
    """Shape (D + 1,): the first sentence of each document."""
    sentence_starts_S: NDArray[np.int64]
    """Shape (S + 1,): the first token of each sentence."""
    _tokens: tuple[int, NDArray[np.integer]] | None = None
    """The bucket read last: a mapped file counts as memory of the process for as long as it is held."""

    @classmethod
    def open(cls, folder: Path, split: str) -> "DocumentSet":
        """Map the index of a split."""
        parts = [np.load(index_path(folder, split, part), mmap_mode="r") for part in INDEX_PARTS]
        return cls(folder, split, *parts)

    @property
    def num_documents(self) -> int:
        """D."""
        return len(self.document_starts_D) - 1

    @property
    def num_sentences(self) -> int:
        """S."""
        return len(self.sentence_starts_S) - 1

    def document_keys(self, bucket: int) -> NDArray[np.uint64]:
        """Return a random key for each document of a bucket; copies of one text differ by their rank."""
        reader = open_mapped(bucket_path(self.folder, self.split, bucket))
        if not reader.num_record_batches:
            return np.zeros(0, np.uint64)
        hashes = np.asarray(reader.get_batch(0)["document_hash"])
        first = np.searchsorted(hashes, hashes)  # equal hashes are neighbours, and never in two buckets
        return mix(hashes, np.arange(len(hashes)) - first)

    @property
    def starts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First sentence of each document and first token of each sentence, for compiled loops."""
        return np.asarray(self.document_starts_D), np.asarray(self.sentence_starts_S)

    def by_place(self, places: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Yield the rows of ``places`` in the order of the index, window by window; it is given back after each.

        Args:
            places: Sentences of the split near which the index will be read.
        """
        from data_prep.array_loops import order_of

        rows = order_of(places)
        if self.num_sentences <= WINDOW_SENTENCES:
            yield rows
            return
        borders = np.arange(WINDOW_SENTENCES, self.num_sentences, WINDOW_SENTENCES)
        for some in np.split(rows, np.searchsorted(places[rows], borders)):
            yield some
            release_pages(self.document_starts_D)
            release_pages(self.sentence_starts_S)

    def bucket_tokens(self, bucket: int) -> NDArray[np.integer]:
        """Return all tokens of a bucket as a view of its file."""
        if self._tokens is None or self._tokens[0] != bucket:
            reader = open_mapped(bucket_path(self.folder, self.split, bucket))
            has_documents = reader.num_record_batches > 0
            ids = flat_list(reader.get_batch(0)["input_ids"])[0] if has_documents else np.zeros(0, np.uint16)
            self._tokens = bucket, ids
        return self._tokens[1]

    def copy_tokens(
        self,
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        target: NDArray[np.integer],
        places: NDArray[np.int64],
    ) -> None:
        """Copy ranges of tokens; a range lies within one document.

        Args:
            starts: Token numbers over the split.
            lengths: Tokens of each range.
            target: Copied to.
            places: Where in it each range goes.
        """
        from data_prep.array_loops import by_part, copy_ranges

        first_tokens = np.ascontiguousarray(self.bucket_starts[:, 2])
        order, begins = by_part(starts, first_tokens)
        for bucket in np.flatnonzero(np.diff(begins)).tolist():
            rows = order[begins[bucket] : begins[bucket + 1]]
            copy_ranges(self.bucket_tokens(bucket), first_tokens[bucket], rows, (starts, lengths, places), target)

    @cached_property
    def document_first_tokens_D(self) -> NDArray[np.int64]:
        """Shape (D + 1,): the first token of each document."""
        return np.asarray(self.sentence_starts_S)[self.document_starts_D]

    def document_of_token(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the document that each token number lies in; the last one for a number behind all."""
        found = np.searchsorted(self.document_first_tokens_D, tokens, side="right") - 1
        return np.minimum(found, self.num_documents - 1)
