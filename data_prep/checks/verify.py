"""Checking finished shards: bytes against the manifest, every instance against the rules; on demand against the text.

While the documents of the build are there, each instance can be compared with them: its sides must be runs of
tokens of the documents that the pairing names, and the label must be true of those. That draws the pairs again.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_prep.checks.invariants import Rules
from data_prep.checks.stats import count_instances, reporting_damage
from data_prep.documents.document_set import SPLITS, DocumentSet, documents_of, index_path, tokenizer_of
from data_prep.execution.build_state import read_state
from data_prep.execution.executors import Executor
from data_prep.execution.progress import INSTANCES, UnitProgress
from data_prep.execution.records import Tally
from data_prep.instances.pairs import PairOptions, Pairs, assemble, make_pairs
from megabert.foundation.errors import DataError, MegabertError
from megabert.foundation.files import check_regular, sha256_file
from megabert.tokens.shards.columns import FlatInstances
from megabert.tokens.shards.folder import MANIFEST_NAME, Manifest, ShardEntry, lengths_path, read_lengths, read_manifest
from megabert.tokens.shards.format import MAX_BATCH_ROWS, ShardMetadata, rows_per_batch
from megabert.tokens.shards.shard_file import find_nonsense, read_batches

WRITE_AGAIN = "Run the same `megabert-data build` command again, which writes it again."
BATCHES_PER_CHECK = 32
"""Record batches that are checked together; each has 32,768 tokens or less."""


@dataclass(frozen=True)
class ShardTask:
    """One shard to check."""

    folder: Path
    """Folder of the shards."""
    entry: ShardEntry
    """The shard in the manifest."""
    options: PairOptions
    """Options of the shard's pairs, from the manifest, to draw them again."""
    documents: Path | None
    """The build's documents, if the text is to be compared."""

    @property
    def metadata(self) -> ShardMetadata:
        """Metadata of all shards of the folder."""
        return self.options.metadata

    @property
    def path(self) -> Path:
        """The shard's file."""
        return self.folder / self.entry.file

    @property
    def split_documents(self) -> DocumentSet:
        """The build's documents of the shard's split."""
        assert self.documents is not None
        return documents_of(self.documents, self.entry.split, self.metadata.vocab_size)


@dataclass(frozen=True)
class Verdict:
    """What checking a folder of shards has shown."""

    shards: int
    instances: int
    problems: list[str]


def verify(folder: Path, executor: Executor, *, use_text: bool = False) -> Verdict:
    """Check all shards of a folder.

    Args:
        folder: One with a manifest.
        executor: Who does the work; already entered.
        use_text: Whether to compare with the documents of the build.

    Raises:
        DataError: The manifest, the tokenizer next to it or the documents that are asked for cannot be used; problems
        of shards are returned.
    """
    manifest = read_manifest(folder)
    try:
        tokenizer = tokenizer_of(folder / "tokenizer")
    except MegabertError:
        if changed := [*_check_tokenizer(folder, manifest)]:
            return Verdict(0, 0, changed)
        raise
    named = manifest.metadata.tokenizer_sha256, manifest.metadata.vocab_size
    if (tokenizer.sha256, tokenizer.vocab_size) != named:  # the rules below go by its ids
        raise DataError(
            f"{folder / 'tokenizer'}: not the tokenizer that the manifest names. Copy the folder of shards again, or "
            "run the same `megabert-data build` command, which writes it again."
        )
    documents = _documents_of(folder) if use_text else None
    tasks = shard_tasks(folder, manifest, documents)
    progress = UnitProgress(f"verify {folder.name}", len(tasks), INSTANCES)
    # Shards finish in any order; problems are listed in the manifest's, so that two runs report alike.
    by_shard: list[list[str]] = [[] for _ in tasks]
    tally = Tally()
    for index, (by_shard[index], counts) in executor.run(check_shard, tasks):
        tally.merge(counts)
        progress.advance({"rows": tasks[index].entry.rows})
    progress.close()
    problems = [*_check_tokenizer(folder, manifest), *chain.from_iterable(by_shard)]
    if not problems:  # counts of damaged shards mean nothing
        with reporting_damage(folder / MANIFEST_NAME, WRITE_AGAIN):
            problems = [*_check_statistics(folder, manifest, tally), *_check_corpus(folder, manifest, documents)]
    return Verdict(len(tasks), sum(entry.rows for entry in manifest.shards), problems)


def shard_tasks(folder: Path, manifest: Manifest, documents: Path | None = None) -> list[ShardTask]:
    """Return a task for each shard of a manifest."""
    config, metadata = manifest.config, manifest.metadata  # another program need not write these settings
    with reporting_damage(folder / MANIFEST_NAME, WRITE_AGAIN):
        short_seq_prob = float(config.get("short_seq_prob", 0.1))
        least = dict(zip(config.get("lengths", ()), config.get("min_tokens") or (), strict=False))
        min_tokens = int(least.get(metadata.max_seq_length, 0))
        holds_ids = any(source["format"] == "ids" for source in config.get("sources", ()))
    how = PairOptions(
        metadata=metadata, short_seq_prob=short_seq_prob, pass_number=0, min_tokens=min_tokens, holds_ids=holds_ids
    )
    return [
        ShardTask(folder, entry, replace(how, pass_number=entry.pass_number), documents) for entry in manifest.shards
    ]


def _documents_of(folder: Path) -> Path:
    documents = folder.resolve().parent.parent / "documents"
    if not index_path(documents, "train").is_file():
        raise DataError(f"{documents}: the build's documents are not there to compare with. Verify without --text.")
    return documents


def check_shard(task: ShardTask) -> tuple[list[str], Tally]:
    """Return the problems of a shard, each with its row, and its counts under the split, as in the manifest.

    If the hash is wrong, that is the only problem.
    """
    tally = Tally()
    return [f"{task.path}: {problem}" for problem in _problems_of(task, tally)], tally


def _problems_of(task: ShardTask, tally: Tally) -> list[str]:
    try:
        check_regular(task.path)
        with pa.memory_map(str(task.path)) as stored:  # hashed and decoded from the same pages
            content = stored.read_buffer()
    except OSError as error:
        return [f"cannot be read ({str(error).splitlines()[0]}). Check its permissions."]
    digest = hashlib.sha256(content).hexdigest()
    if digest != task.entry.sha256:
        return [
            f"its bytes changed: SHA-256 {digest[:16]}..., the manifest says {task.entry.sha256[:16]}... "
            "Copy the shard again, or delete it and run the same `megabert-data build` command, which writes it again."
        ]
    try:
        return _check_content(task, content, tally)
    except (DataError, pa.ArrowException, OSError, SystemError) as error:
        return [str(error).removeprefix(f"{task.path}: ").splitlines()[0]]


def _check_content(task: ShardTask, content: pa.Buffer, tally: Tally) -> list[str]:
    reader = pa.ipc.open_file(content, options=pa.ipc.IpcReadOptions(use_threads=False))
    if ShardMetadata.from_arrow(reader.schema, str(task.path)) != task.metadata:
        return ["its metadata differs from the manifest's"]
    tokenizer = tokenizer_of(task.folder / "tokenizer")
    rules, pairs = Rules.of(task.metadata, tokenizer, holds_ids=task.options.holds_ids), _pairs(task)
    totals, problems, first = np.zeros(3, np.int64), [], 0
    sizes = [np.zeros((2, 0), np.int64)]  # a damaged shard may have no batch
    # A few at a time, so that little is held decoded.
    for numbers in _groups(task, reader):
        batch = FlatInstances.of(read_batches(reader, numbers))
        rows, each = len(batch.next_sentence_labels), rows_per_batch(task.metadata.max_seq_length)
        if rows != min(len(numbers) * each, task.entry.rows - first):
            problems.append(f"record batches {numbers[0]} to {numbers[-1]} do not have {each} rows each")
        # With the documents, the rows are compared with the pairs that are drawn again.
        part = None if pairs is None else pairs.take(slice(first, first + rows))
        problems += _check_batch(task, batch, first, rules, part)
        if not problems:  # counting follows positions
            tally.add(count_instances(batch, task.metadata), task.entry.split)
        totals += [rows, len(batch.input_ids), len(batch.masked_positions)]
        sizes.append(np.stack([np.diff(batch.token_starts), np.diff(batch.masked_starts)]))
        first += rows
    # Rows may be sound and yet too few.
    said = [task.entry.rows, task.entry.tokens, task.entry.masked_tokens]
    if totals.tolist() != said:
        problems.append(f"rows, tokens, masked tokens are {totals.tolist()}, the manifest says {said}")
    if pairs is not None and pairs.size != first:
        problems.append(f"it has {first} rows, the documents give {pairs.size}")
    return problems + _check_index(task, np.concatenate(sizes, axis=1))


def _groups(task: ShardTask, reader: pa.RecordBatchFileReader) -> list[range]:
    """Return the record batches that are checked together."""
    count, rows = reader.num_record_batches, rows_per_batch(task.metadata.max_seq_length)
    size = max(1, min(BATCHES_PER_CHECK, MAX_BATCH_ROWS // rows))
    return [range(first, min(first + size, count)) for first in range(0, count, size)]


def _check_index(task: ShardTask, sizes: NDArray[np.int64]) -> list[str]:
    """Compare the lengths index of a shard, if there is one, with the lengths in the shard."""
    if not lengths_path(task.path).exists():
        return []
    kinds = 1 if task.metadata.masking == "dynamic" else 2
    stored = read_lengths(task.path, sizes.shape[1], kinds)
    if stored is not None and np.array_equal(stored, sizes[:kinds]):
        return []
    return [f"{lengths_path(task.path)}: says other lengths than the shard. Delete it: training writes it again."]


def check_build(folder: Path, shards_folder: Path) -> Iterator[str]:
    """Yield the damage of a build's state and of its own tokenizer, by the manifest of one of its folders of shards."""
    try:
        if read_state(folder):
            yield from _check_tokenizer(folder, read_manifest(shards_folder))
    except DataError as error:
        yield str(error)


def _check_tokenizer(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Yield the files of the tokenizer whose bytes changed; what gives its ids was compared before."""
    for name, said in manifest.tokenizer_files.items():
        path = folder / "tokenizer" / name
        if not path.is_file() or sha256_file(path) != said:
            yield f"{path}: is missing or its bytes changed. {WRITE_AGAIN}"


def _check_statistics(folder: Path, manifest: Manifest, tally: Tally) -> Iterator[str]:
    """Yield the counts in which manifest and shards differ; another program need not count."""
    said = manifest.statistics.get("instances", {})
    for split in said and {*said, *tally.groups}:
        own, theirs = tally.of(split), said.get(split, {})
        for name in (name for name in {**own, **theirs} if own.get(name) != theirs.get(name)):
            values = f"{name}={theirs.get(name)} of {split}, the shards {own.get(name)}"
            yield f"{folder / MANIFEST_NAME}: its statistics say {values}"


def _check_corpus(folder: Path, manifest: Manifest, documents: Path | None) -> Iterator[str]:
    """Yield the counts in which the manifest and the index of the documents differ."""
    said = manifest.statistics.get("corpus")
    if documents is None or said is None:
        return
    splits = [split for split in SPLITS if index_path(documents, split).is_file()]
    sets = [DocumentSet.open(documents, split, manifest.metadata.vocab_size) for split in splits]
    totals = np.sum([own.bucket_starts[-1] for own in sets], axis=0).tolist()
    for name, total in zip(("documents", "sentences", "tokens"), totals, strict=True):
        if said.get(name) != total:
            manifest_says = f"{folder / MANIFEST_NAME}: its statistics say {said.get(name)} {name}"
            yield f"{manifest_says}, {documents} has {total}"


def _check_batch(task: ShardTask, batch: FlatInstances, first: int, rules: Rules, pairs: Pairs | None) -> list[str]:
    if nonsense := find_nonsense(batch, task.metadata):
        return [f"row {first + nonsense[0]}: {nonsense[1]}"]
    broken = rules.broken(batch)
    if not broken and pairs is not None:  # the text before masking can be restored for sound rows only
        broken = _compare_text(task, batch, pairs)
    return [f"row {first + int(rows[0])} ({len(rows)} rows in its batch): {rule}" for rule, rows in broken.items()]


def _pairs(task: ShardTask) -> Pairs | None:
    if task.documents is None:
        return None
    documents, entry = task.split_documents, task.entry
    if not 1 <= entry.buckets <= documents.num_buckets - entry.bucket:
        raise DataError(f"the manifest says that it is of bucket {entry.bucket} of {documents.num_buckets}")
    buckets = range(entry.bucket, entry.bucket + entry.buckets)
    return Pairs.join([make_pairs(documents, bucket, task.options, task.folder / "tokenizer") for bucket in buckets])


def _compare_text(task: ShardTask, batch: FlatInstances, pairs: Pairs) -> dict[str, NDArray[np.int64]]:
    """Compare a sound batch with the ranges of the documents that it was made from, and those with the label."""
    documents = task.split_documents
    expected = assemble(documents, pairs, task.metadata)
    if not np.array_equal(expected.token_starts, batch.token_starts):
        return {"its length is not that of its pair in the documents": np.arange(len(batch.next_sentence_labels))}
    ids_T = batch.input_ids.copy()
    ids_T[batch.masked_tokens] = batch.masked_ids  # as before masking
    other = np.searchsorted(batch.token_starts, np.flatnonzero(ids_T != expected.input_ids), side="right") - 1
    is_other = batch.segment_b_starts != expected.segment_b_starts
    is_other[other] = True
    checks = {
        "its text is not that of its pair in the documents": is_other,
        **untrue_pairs(documents, pairs, task.metadata),
        "its label is not that of its pair": batch.next_sentence_labels != pairs.label,
    }
    return {rule: np.flatnonzero(bad) for rule, bad in checks.items() if bad.any()}


def untrue_pairs(documents: DocumentSet, pairs: Pairs, metadata: ShardMetadata) -> dict[str, NDArray[np.bool_]]:
    """Return the pairs that are not what their label says, or are no runs of one document."""
    a, b = documents.document_of_token(pairs.a_start), documents.document_of_token(pairs.b_start)
    a_last = documents.document_of_token(pairs.a_end - 1)
    has_b = pairs.b_length > 0
    b_last = documents.document_of_token(pairs.b_start + np.maximum(pairs.b_length, 1) - 1)
    checks = {"a side spans two documents": (a != a_last) | (has_b & (b != b_last))}
    # Where a cut may be at the end of A (google, sentence order), text is missing between A and B. Balanced pairs for
    # next sentence prediction are cut elsewhere, so they stay adjacent.
    follows = (a == b) & (pairs.b_start >= pairs.a_end)
    is_true = pairs.label == 0 if metadata.objective == "nsp" else np.ones(pairs.size, bool)
    checks["B does not follow A in its document"] = has_b & is_true & ~follows
    if (metadata.objective, metadata.pairing) == ("nsp", "balanced"):
        checks["B is not adjacent to A"] = has_b & is_true & (pairs.b_start != pairs.a_end)
        checks["a random B comes from A's own document"] = has_b & ~is_true & (a == b)
    return checks
