"""Step 5: put the documents of all chunks into buckets by their hash, and write the index over them.

A bucket is a range of hashes, and its documents are sorted by hash. So the order within and over buckets is that of the
hashes: the whole corpus is shuffled, although no process holds more than one bucket of it. From here on, documents
and tokens are named by their number over all buckets of a split (`DocumentSet`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep.arrow_files import single_batch
from data_prep.config import BuildConfig
from data_prep.document_set import SPLITS, bucket_path, document_schema, hash_range, index_path, read_range
from data_prep.execution.work_units import TOKENS, Build, Counts, Unit, add_counts
from data_prep.steps.step4_merge_chunks import TokenFile
from megabert.randomness.keyed import mix, string_key, uniform
from megabert.schema import atomic_path, flat_list

BUCKET_TOKENS = 5_000_000
MAX_BUCKET_TOKENS = 20_000_000
"""Tokens that a bucket holds after weights, about: a worker has all of them in memory."""
MIN_BUCKETS = 4
DOCUMENTS_A_BUCKET = 8  # with fewer, some buckets are likely to be empty


@dataclass(frozen=True)
class BucketTask:
    """Which documents of which files to put into a bucket."""

    sources: tuple[Path, ...]
    """Files of tokenized documents that may hold some of the bucket's."""
    split: str
    bucket: int
    buckets: int
    """Number of buckets of the split."""
    vocab_size: int
    path: Path
    """Output."""
    config: BuildConfig
    """Says which documents are kept: the rule on duplicates, and weights of the sources."""


@dataclass(frozen=True)
class IndexTask:
    """The buckets of a split."""

    folder: Path
    split: str
    buckets: int


def count_buckets(config: BuildConfig, counts: Counts) -> dict[str, int]:
    """Return the number of buckets of each split that has documents: by the corpus, never by the number of workers.

    Args:
        config: Configuration of the build.
        counts: What the tokenization counted.
    """
    train, validation = counts["documents"]
    # One bucket for 5 million tokens and at least four, but none that is likely to stay empty. Weights let a bucket
    # grow when it is filled; large ones need more buckets.
    weights = [source.weight for source in config.sources]
    used = sum(weights[int(source)] * tokens for source, tokens in counts.get("tokens_by_source", {}).items())
    wanted = max(MIN_BUCKETS, -(-counts["tokens"] // BUCKET_TOKENS), math.ceil(used / MAX_BUCKET_TOKENS))
    automatic = max(1, min(wanted, train // DOCUMENTS_A_BUCKET))
    buckets = {"train": config.buckets or automatic}
    if validation:
        buckets["validation"] = max(1, round(buckets["train"] * config.validation_share))
    return buckets


def fill_buckets(build: Build, files: list[TokenFile], buckets: dict[str, int], vocab_size: int) -> Counts:
    """Write all buckets and their index; return what was counted of the documents that are kept.

    Args:
        build: The build.
        files: Tokenized documents.
        buckets: Number of buckets of each split.
        vocab_size: Pieces of the vocabulary.
    """
    outcomes = build.run("buckets", bucket_units(build, files, buckets, vocab_size), TOKENS)
    build.run("index", index_units(build, buckets))
    return add_counts(outcomes)


def bucket_units(build: Build, files: Sequence[TokenFile], buckets: dict[str, int], vocab_size: int) -> list[Unit]:
    """Return a unit for each bucket; finished ones can be recognized without naming the files."""
    units = []
    for split, count in buckets.items():
        for bucket in range(count):
            sources = tuple(file.path for file in files if file.overlaps(*hash_range(bucket, count)))
            path = bucket_path(build.path("documents"), split, bucket)
            task = BucketTask(sources, split, bucket, count, vocab_size, path, build.config)
            units.append(build.unit("documents", path.stem, fill_bucket, task))
    return units


def index_units(build: Build, buckets: dict[str, int]) -> list[Unit]:
    """Return a unit for the index of each split."""
    folder = build.path("documents")
    return [
        build.unit("index", split, build_index, IndexTask(folder, split, count)) for split, count in buckets.items()
    ]


def fill_bucket(task: BucketTask) -> tuple[list[Path], Counts]:
    """Write the documents of one bucket."""
    # Every file is sorted by hash, so the bucket's documents are one slice of each.
    low, high = hash_range(task.bucket, task.buckets)
    documents = read_range(task.sources, [SPLITS.index(task.split)], low, high)
    # Sorting the slices together by hash shuffles them: neighbours in the corpus are not neighbours in the bucket.
    order, counts = _choose(task, documents.hashes_D, documents.sources_D)
    documents = documents.take(order)
    # The split is the same for the whole file, so the column is left out.
    schema = document_schema(task.vocab_size)
    documents.write(task.path, schema.remove(schema.get_field_index("split")))
    counts |= {
        "documents": {task.split: len(documents)},
        "documents_by_source": _by_source(documents.sources_D),
        "tokens_by_source": _by_source(documents.sources_D, np.diff(documents.token_offsets)),
        "sentences": len(documents.sentence_lengths_S),
        "tokens": len(documents.ids_T),
        "one_sentence_documents": int(np.count_nonzero(np.diff(documents.sentence_offsets) == 1)),
    }
    return [task.path], counts


def _choose(
    task: BucketTask, hashes: NDArray[np.uint64], sources: NDArray[np.uint16]
) -> tuple[NDArray[np.integer], Counts]:
    """Return the documents to keep, in the order of their hashes, each as often as its source's weight says."""
    order = np.lexsort((sources, hashes))
    counts: Counts = {}
    if "duplicate_documents" in task.config.clean.rules:
        # Equal texts are neighbours now; the one of the first source is kept.
        is_first = np.diff(hashes[order], prepend=~hashes[order][:1]) != 0
        counts["duplicate_documents"] = _by_source(sources[order[~is_first]])
        order = order[is_first]
    weights = [source.weight for source in task.config.sources]
    if task.split == "train" and any(weight != 1 for weight in weights):
        # A weight of 2.3 takes each document twice, and three in ten, by a draw from its hash, a third time.
        weight = np.array(weights)[sources[order]]
        times = np.floor(weight).astype(np.int64)
        times += uniform(mix(hashes[order], string_key("weight"))) < weight - times
        counts["documents_without_weight"] = int(np.count_nonzero(times == 0))
        order = np.repeat(order, times)
    return order, counts


def _by_source(sources: NDArray[np.uint16], sizes: NDArray[np.int64] | None = None) -> dict[str, int]:
    """Return the number of documents of each source that has any, or the sum of their sizes."""
    return {str(index): int(count) for index, count in enumerate(np.bincount(sources, sizes)) if count}


def build_index(task: IndexTask) -> tuple[list[Path], Counts]:
    """Write how many documents, sentences and tokens come before each bucket of a split, and how many there are."""
    sizes = np.array([_sizes(task, bucket) for bucket in range(task.buckets)], np.int64).reshape(-1, 3)
    before = np.concatenate([np.zeros((1, 3), np.int64), np.cumsum(sizes, axis=0)])
    path = index_path(task.folder, task.split)
    with atomic_path(path) as temporary, open(temporary, "wb") as stream:
        np.save(stream, before)
    return [path], {"documents": int(before[-1, 0])}


def _sizes(task: IndexTask, bucket: int) -> tuple[int, int, int]:
    """Return the number of documents, sentences and tokens of a bucket."""
    lengths, offsets = flat_list(single_batch(bucket_path(task.folder, task.split, bucket))["sentence_lengths"])
    return len(offsets) - 1, len(lengths), int(lengths.sum(dtype=np.int64))
