"""Steps 4 and 5: put the documents of all chunks into buckets by their hash, and write the index over them.

Step 4 is for large corpora. Every bucket needs documents of every chunk. If each of many buckets opened each of many
chunks, a terabyte of text would take billions of opens. So if there are more than ``MAX_FILES`` files, groups of that
many are merged, and if that leaves too many, the merged files are merged again. A merged file has a record batch for
each small range of hashes, so that one range is read without the others. No unit opens more than ``MAX_FILES`` files,
and no file is opened more often than the ranges are divided among units: once a level for most of a large corpus.

A bucket is a range of hashes, and its documents are sorted by hash. So documents are in the order of their hashes,
within a bucket and over all: the whole corpus is shuffled, although no process holds more than one bucket of it. From
here on, documents and tokens are named by their number over all buckets of a split (`DocumentSet`).
"""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_prep.config.build import BuildConfig
from data_prep.documents import document_set
from data_prep.documents.arrow_files import offsets_of, write_batches
from data_prep.documents.document_set import SPLITS, document_schema, hash_range, tokenizer_of
from data_prep.documents.token_files import TokenFile, TokenFiles, TokenReader
from data_prep.execution.progress import TOKENS
from data_prep.execution.records import Counts, Outcome
from data_prep.execution.work_units import LazyList, RunningBuild, Unit
from megabert.foundation.errors import ConfigError
from megabert.foundation.files import atomic_write, read_small
from megabert.foundation.randomness.keyed import mix, string_key, uniform

MAX_FILES = 256


@dataclass(frozen=True)
class MergeTask:
    """Files of tokenized documents, and the file to write: a range of the hashes of all of these."""

    sources: tuple[TokenFile, ...]
    file: TokenFile
    tokenizer: Path


def plan_levels(files: TokenFiles, folder: Path, buckets: int) -> list[TokenFiles]:
    """Return the tokenized chunks, and the files of each level of merging.

    Args:
        files: The tokenized chunks.
        folder: Where merged files go.
        buckets: Training buckets. A cell is no smaller than one, so that it costs no more than one to hold.
    """
    levels = [files]
    while levels[-1].files > MAX_FILES:
        groups = -(-levels[-1].files // MAX_FILES)
        grid = min(levels[-1].grid * MAX_FILES, buckets)
        grid -= grid % MAX_FILES if grid > MAX_FILES else 0  # so that the blocks of all levels begin at equal hashes
        # The hashes are divided among units as far as a bucket, which may need any of them, still opens no more than
        # MAX_FILES files. Where another level follows, and where one went before, there are units enough.
        blocks = MAX_FILES if len(levels) > 1 else max(1, MAX_FILES // groups)
        # Named after the chunks, so that a record of merged text is not taken for one of documents split again.
        name = f"{files.name.partition('{')[0]}{len(levels)}-{{block:05d}}-{{number:05d}}.arrow"
        levels.append(TokenFiles(folder, name, groups, min(blocks, grid), grid))
    return levels


def merge_chunks(build: RunningBuild, tokenized: TokenFiles, buckets: int) -> TokenFiles:
    """Return the files that buckets are filled from: the tokenized chunks, or the files they were merged into."""
    levels = plan_levels(tokenized, build.path("work", "chunks"), buckets)
    for before, after in pairwise(levels):
        build.run("chunks", merge_units(build, before, after), TOKENS)
    return levels[-1]


def merge_units(build: RunningBuild, before: TokenFiles, after: TokenFiles) -> LazyList[Unit]:
    """Return a unit for each file of a level of merging."""
    tokenizer = build.path("tokenizer")

    def unit(number: int) -> Unit:
        block, group = divmod(number, after.files)
        file = after[block, group]
        # A group of the files of the block before, of which the new block is a part.
        low, high = (hash_range(cell, file.grid)[0] for cell in (file.first_cell, file.first_cell + file.cells))
        first, end = (border * before.files // after.files for border in (group, group + 1))
        sources = before.overlapping(low, high, range(first, end))
        return build.unit("chunks", file.path.stem, merge, MergeTask(sources, file, tokenizer))

    return LazyList(after.blocks * after.files, unit)


def merge(task: MergeTask) -> tuple[list[Path], Counts]:
    """Write the documents of a range of hashes, cell by cell, as if they were one tokenized chunk."""
    vocab_size, tokens = tokenizer_of(task.tokenizer).vocab_size, 0
    schema, reader, first = document_schema(vocab_size), TokenReader(task.sources, vocab_size), task.file.first_cell

    def cell(number: int) -> pa.RecordBatch:
        nonlocal tokens
        documents = reader.read(range(len(SPLITS)), *hash_range(number, task.file.grid))
        tokens += len(documents.ids_T)
        # The sort is stable: documents with equal texts stay in the order of the chunks.
        return documents.take(np.lexsort((documents.hashes_D, documents.splits_D))).to_batch(schema)

    write_batches(task.file.path, schema, map(cell, range(first, first + task.file.cells)))
    return [task.file.path], {"tokens": tokens}


BUCKET_TOKENS = 5_000_000
MAX_BUCKET_TOKENS = 10_000_000
"""Tokens that a bucket holds after weights, about, and the copies of one document, which are in one bucket: a worker
has all of them in memory."""
ASKED_BUCKET_TOKENS = 20_000_000
"""Tokens that ``buckets`` may put into each, about; twice that number is refused."""
WORK_BYTES_PER_TOKEN = 40
"""Memory of a worker for each token of the bucket that it works on, about."""
MIN_BUCKETS = 4
TRAIN_BUCKETS_PER_VALIDATION_BUCKET = 4096
"""At most, so that a validation bucket overlaps few of the merged files."""
DOCUMENTS_PER_BUCKET = 8  # with fewer, some buckets are likely to be empty


@dataclass(frozen=True)
class BucketTask:
    """Which documents of which files to put into a bucket."""

    files: TokenFiles | None
    """All tokenized documents; None for a task that is only looked up, and never done."""
    split: str
    bucket: int
    buckets: int
    """Number of buckets of the split."""
    tokenizer: Path
    path: Path
    """Output."""
    config: BuildConfig
    """Says which documents are kept: the rule on duplicates, and weights of the sources."""

    @property
    def sources(self) -> tuple[TokenFile, ...]:
        """Files that may hold some of the bucket's documents; listed by the worker, for there are many in all."""
        return self.files.overlapping(*hash_range(self.bucket, self.buckets)) if self.files else ()


def count_buckets(config: BuildConfig, counts: Counts, used_tokens: float | None = None) -> dict[str, int]:
    """Return the number of buckets of each split that has documents: by the corpus, never by the number of workers.

    Args:
        config: Configuration of the build.
        counts: Counts of step 3.
        used_tokens: Tokens after weights, if they are not counted by source.

    Raises:
        ConfigError: So few are asked for that a worker may not have the memory for one.
    """
    train, validation = counts["documents"]
    # One bucket for 5 million tokens and at least four, but none that is likely to stay empty. Weights let a bucket
    # grow when it is filled; large ones need more buckets.
    weights = [source.weight for source in config.sources]
    used = sum(weights[int(source)] * tokens for source, tokens in counts.get("tokens_by_source", {}).items())
    used = used if used_tokens is None else used_tokens
    wanted = max(MIN_BUCKETS, -(-counts["tokens"] // BUCKET_TOKENS), math.ceil(used / MAX_BUCKET_TOKENS))
    # Both splits together, so that another share alone leaves documents in their buckets.
    automatic = max(1, min(wanted, (train + validation) // DOCUMENTS_PER_BUCKET))
    if config.buckets and used / config.buckets > 2 * ASKED_BUCKET_TOKENS:
        held, enough = int(used / config.buckets), math.ceil(used / ASKED_BUCKET_TOKENS)
        raise ConfigError(
            f"buckets={config.buckets} puts {held:,} tokens into each, which a worker holds in memory (about "
            f"{held * WORK_BYTES_PER_TOKEN / 2**30:,.0f} GiB). Leave buckets out, or give {enough:,} or more."
        )
    buckets = {"train": config.buckets or automatic}
    if validation:
        buckets["validation"] = validation_buckets(buckets["train"], config.validation_share)
    return buckets


def validation_buckets(train: int, share: float) -> int:
    """Return the number of buckets of held-out documents.

    Args:
        train: Number of training buckets.
        share: Share of the documents that is held out.
    """
    # The last term, for terabytes with few held-out documents: a bucket of theirs takes a wide range of hashes, and
    # the files that overlap it are opened one by one.
    return max(1, round(train * share), train // TRAIN_BUCKETS_PER_VALIDATION_BUCKET)


def fill_buckets(build: RunningBuild, files: TokenFiles, buckets: dict[str, int]) -> Counts:
    """Write all buckets and their index; return the counts of the documents that are kept.

    Args:
        build: The build.
        files: Tokenized documents.
        buckets: Number of buckets of each split.
    """
    results = build.run("documents", bucket_units(build, files, buckets), TOKENS, keep=bucket_sizes)
    write_index(build, buckets, results.kept)
    return results.counts


def bucket_units(build: RunningBuild, files: TokenFiles | None, buckets: dict[str, int]) -> Sequence[Unit]:
    """Return a unit for each bucket; finished ones can be recognized without the files."""
    folder, tokenizer, splits = build.path("documents"), build.path("tokenizer"), list(buckets)
    first_units = offsets_of(np.array([buckets[split] for split in splits], np.int64))

    def task(number: int) -> BucketTask:
        index = int(np.searchsorted(first_units, number, side="right")) - 1
        split, bucket = splits[index], number - int(first_units[index])
        path = document_set.bucket_path(folder, split, bucket)
        return BucketTask(files, split, bucket, buckets[split], tokenizer, path, build.config)

    return build.units("documents", fill_bucket, int(first_units[-1]), task)


def fill_bucket(task: BucketTask) -> tuple[list[Path], Counts]:
    """Write the documents of one bucket."""
    # Every file is sorted by hash, so the bucket's documents are one slice of each.
    low, high = hash_range(task.bucket, task.buckets)
    vocab_size = tokenizer_of(task.tokenizer).vocab_size
    documents = TokenReader(task.sources, vocab_size).read([SPLITS.index(task.split)], low, high)
    # Sorting the slices together by hash shuffles them: neighbours in the corpus are not neighbours in the bucket.
    order, counts = _choose(task, documents)
    documents = documents.take(order)
    # The split is the same for the whole file, so the column is left out.
    documents.write(task.path, document_set.bucket_schema(vocab_size))
    counts |= {
        "documents": {task.split: len(documents)},
        "documents_by_source": _by_source(documents.sources_D),
        "tokens_by_source": _by_source(documents.sources_D, np.diff(documents.token_offsets)),
        "sentences": len(documents.sentence_lengths_S),
        "tokens": len(documents.ids_T),
        "one_sentence_documents": int(np.count_nonzero(np.diff(documents.sentence_offsets) == 1)),
    }
    return [task.path], counts | _short_ones(task.config, np.diff(documents.token_offsets))


def _short_ones(config: BuildConfig, tokens: NDArray[np.int64]) -> Counts:
    """Count the documents, and their tokens, that are too short for each length."""
    least = {length: config.least_tokens(length) for length in config.lengths}
    if not any(least.values()):  # then the counts of a build do not speak of it
        return {}
    is_short = {str(length): tokens < needed for length, needed in least.items()}
    return {
        "short_documents": {length: int(np.count_nonzero(rows)) for length, rows in is_short.items()},
        "short_tokens": {length: int(tokens[rows].sum()) for length, rows in is_short.items()},
    }


def _choose(task: BucketTask, documents: document_set.TokenizedDocuments) -> tuple[NDArray[np.integer], Counts]:
    """Return the documents to keep, in the order of their hashes, each as often as its source's weight says.

    Copies of one text, by weight or as in the corpus, are all in this bucket: no more are kept than a worker can hold.
    """
    hashes, sources = documents.hashes_D, documents.sources_D
    weights = np.array([source.weight for source in task.config.sources])
    # Equal texts are neighbours now: first of the source with the highest weight, then of the first by name, then with
    # the most sentences, since texts that differ in white space are equal too. The order of the input decides nothing.
    ranks = np.argsort(np.lexsort((np.array([source.title for source in task.config.sources]), -weights)))
    order = np.lexsort((-np.diff(documents.sentence_offsets), ranks[sources], hashes))
    counts: Counts = {}
    if "duplicate_documents" in task.config.clean.rules:
        is_first = _is_first(hashes[order])
        counts["duplicate_documents"] = _by_source(sources[order[~is_first]])
        order = order[is_first]
    times = np.ones(len(order), np.int64)
    if task.split == "train" and (weights != 1).any():
        # A weight of 2.3 takes each document twice, and three in ten, by a draw from its hash, a third time.
        weight = weights[sources[order]]
        times = np.floor(weight).astype(np.int64)
        times += uniform(mix(hashes[order], string_key("weight"))) < weight - times
        counts["documents_without_weight"] = int(np.count_nonzero(times == 0))
    most = np.maximum(1, MAX_BUCKET_TOKENS // np.maximum(np.diff(documents.token_offsets)[order], 1))
    starts = offsets_of(times)[:-1]
    copies_before = starts - np.maximum.accumulate(np.where(_is_first(hashes[order]), starts, 0))
    kept = np.clip(most - copies_before, 0, times)
    if (kept < times).any():  # else the counts of a build do not speak of it
        counts["copies_left_out"] = int((times - kept).sum())
    return np.repeat(order, kept), counts


def _is_first(hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return whether each of some hashes in order differs from the one before it."""
    return np.diff(hashes, prepend=~hashes[:1]) != 0


def _by_source(sources: NDArray[np.uint16], sizes: NDArray[np.int64] | None = None) -> dict[str, int]:
    """Return the number of documents of each source that has any, or the sum of their sizes."""
    return {str(index): int(count) for index, count in enumerate(np.bincount(sources, sizes)) if count}


def bucket_sizes(outcome: Outcome) -> tuple[int, int, int]:
    """Return the number of documents, sentences and tokens of a bucket."""
    counts = outcome.counts
    return sum(counts["documents"].values()), counts["sentences"], counts["tokens"]


def write_index(build: RunningBuild, buckets: dict[str, int], sizes: list[tuple[int, int, int]]) -> None:
    """Write how many documents, sentences and tokens come before each bucket of a split, and how many there are.

    Args:
        build: The build.
        buckets: Number of buckets of each split.
        sizes: Result of `bucket_sizes` for each bucket, split by split.
    """
    first = 0
    for split, count in buckets.items():
        before = np.zeros((count + 1, 3), np.int64)
        np.cumsum(np.array(sizes[first : first + count], np.int64).reshape(-1, 3), axis=0, out=before[1:])
        first += count
        content, path = io.BytesIO(), document_set.index_path(build.path("documents"), split)
        np.save(content, before)
        if not path.is_file() or read_small(path) != content.getvalue():
            atomic_write(path, content.getvalue())
