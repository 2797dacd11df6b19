"""Step 6: a shard of instances from each bucket, or from some, for each length and each pass; then the manifests.

A pass over a bucket (there are ``dupe_factor`` of them over the training documents) makes other pairs and other masks
of the same documents. Held-out documents are passed over once.
"""

import filecmp
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from operator import index
from pathlib import Path

import numpy as np
import pyarrow as pa

from data_prep.checks.stats import count_instances
from data_prep.config.build import BuildConfig
from data_prep.documents.arrow_files import write_batches
from data_prep.documents.document_set import SPLITS, DocumentSet, documents_of, index_path, tokenizer_of
from data_prep.execution.progress import INSTANCES
from data_prep.execution.records import Counts, Outcome, Tally
from data_prep.execution.work_units import Results, RunningBuild, Unit
from data_prep.instances.pairs import PAIR_SPECIALS, PairOptions, assemble, make_pairs, mask, to_batch
from megabert.foundation.errors import DataError
from megabert.foundation.files import sha256_file
from megabert.foundation.whole_folders import publish_folder
from megabert.tokens.shards.folder import Manifest, ShardEntry, write_lengths, write_manifest
from megabert.tokens.shards.format import ShardMetadata, instance_schema, rows_per_batch, token_type
from megabert.tokens.tokenization.huggingface import TOKENIZER_FILES, copy_tokenizer, tokenizer_files

USES = {"balanced": 1.0, "google": 1.3}
"""How often a token of the text is in a pass, about: `google` writes some text twice."""
ROW_BYTES = 19
"""Bytes of an instance next to its ids and masks: offsets of three lists, start of B, label, and the lengths index."""
SHARD_NAME = re.compile(rf"({'|'.join(SPLITS)})-\d{{5,}}-\d{{2,}}\.(arrow|row_lengths\.npy)")
"""Names of shards and of the indices next to them."""
NOMINAL_LENGTH = 128
"""Length at which the buckets of a shard are counted."""
MIN_SHARDS = 512
"""Training shards of a length that a corpus has, before any of them takes several buckets."""
MAX_SHARDS = 50_000
"""Training shards of a length, about: a folder and a manifest of more are slow to list and to read."""


@dataclass(frozen=True)
class InstanceTask:
    """What one shard is made from."""

    folder: Path
    """Folder of the build, with the documents and the tokenizer."""
    split: str
    bucket: int
    """The first bucket."""
    buckets: int
    """Number of consecutive buckets, whose instances follow each other."""
    options: PairOptions
    path: Path
    """The shard."""


def bytes_per_token(config: BuildConfig, length: int, vocab_size: int) -> float:
    """Return the size of shards, with their indices, for each token of the text, if all instances are full.

    Args:
        config: Configuration of the build.
        length: Length of the instances.
        vocab_size: Pieces of the vocabulary, which decide how wide an id is.
    """
    width = token_type(vocab_size).bit_width // 8
    # A mask is the id that it hides, and a position of two bytes.
    masked = 0.0 if config.masking == "dynamic" else config.masked_lm_prob * length
    row = width * length + (width + 2) * masked + ROW_BYTES
    return USES[config.pairing] * row / (length - PAIR_SPECIALS)


def count_buckets_per_shard(config: BuildConfig, buckets: int, tokens: int, vocab_size: int) -> int:
    """Return how many buckets the instances of a shard come from: by the corpus, never by the number of workers.

    It is the same for all lengths, at `NOMINAL_LENGTH`, so that a length that is added changes no other one's shards.

    Args:
        config: Configuration of the build.
        buckets: Training buckets.
        tokens: Tokens in these.
        vocab_size: Pieces of the vocabulary.
    """
    passes, token_bytes = buckets * config.dupe_factor, bytes_per_token(config, NOMINAL_LENGTH, vocab_size)
    wanted = int(config.shard_mib * 2**20 * buckets / (token_bytes * max(tokens, 1)))
    shared = min(wanted, passes // MIN_SHARDS)
    return max(1, shared, -(-passes // MAX_SHARDS))


def make_instances(build: RunningBuild, corpus: Counts, buckets: int) -> dict[int, Manifest]:
    """Write the shards of all lengths, then a manifest for each length.

    The manifest comes last, so a folder without one is unfinished.

    Args:
        build: The build.
        corpus: Counts of the corpus for the manifests.
        buckets: Training buckets.
    """
    metadata = {length: _metadata(build, length) for length in build.config.lengths}
    vocab_size = tokenizer_of(build.path("tokenizer")).vocab_size
    per_shard = count_buckets_per_shard(build.config, buckets, corpus["tokens"], vocab_size)
    units = [unit for own in metadata.values() for unit in instance_units(build, own, per_shard)]
    # The units of all lengths are run as one list, so that no worker waits for the last ones of a length.
    results = build.run("instances", units, INSTANCES, keep=shard_of)
    entries: dict[int, list[ShardEntry]] = {length: [] for length in metadata}
    for unit, shard in zip(units, results.kept, strict=True):
        if shard is not None:
            task = unit.argument
            rows, tokens, masked, digest = shard
            source = task.bucket, task.options.pass_number, task.buckets
            entry = ShardEntry(task.path.name, task.split, rows, tokens, masked, digest, *source)
            entries[task.options.metadata.max_seq_length].append(entry)
    manifests = {length: _manifest(build, own, entries[length], results, corpus) for length, own in metadata.items()}
    for length, manifest in manifests.items():
        folder = build.path("instances", str(length))
        _copy_tokenizer(build.path("tokenizer"), folder / "tokenizer")
        write_manifest(folder, manifest)
        _remove_others(folder, manifest)
    return manifests


def _remove_others(folder: Path, manifest: Manifest) -> None:
    """Delete shards of earlier settings, such as shards of passes that are not wanted any more."""
    listed = {Path(shard.file).stem for shard in manifest.shards}
    for path in folder.iterdir():
        stem = path.name.partition(".")[0]
        if SHARD_NAME.fullmatch(path.name) and stem not in listed:
            path.unlink()


def _metadata(build: RunningBuild, length: int) -> ShardMetadata:
    config, tokenizer = build.config, tokenizer_of(build.path("tokenizer"))
    return ShardMetadata(
        objective=config.objective,
        pairing=config.pairing,
        masking=config.masking,
        mask_unit=config.mask_unit,
        max_seq_length=length,
        max_predictions_per_seq=config.max_predictions(length),
        seed=config.seed,
        tokenizer_sha256=tokenizer.sha256,
        special_ids=tokenizer.special_ids._asdict(),
        vocab_size=tokenizer.vocab_size,
        masked_lm_prob=config.masked_lm_prob,
    )


def instance_units(build: RunningBuild, metadata: ShardMetadata, buckets_per_shard: int) -> Iterator[Unit]:
    """Yield a unit for each pass over the buckets of each shard."""
    config, documents, length = build.config, build.path("documents"), metadata.max_seq_length
    for split in SPLITS:
        if not index_path(documents, split).is_file():
            continue
        buckets = DocumentSet.open(documents, split, metadata.vocab_size).num_buckets
        for pass_number in range(config.dupe_factor if split == "train" else 1):
            options = PairOptions(
                metadata=metadata,
                short_seq_prob=config.short_seq_prob,
                pass_number=pass_number,
                min_tokens=config.least_tokens(length),
                holds_ids=config.holds_ids,
            )
            for bucket in range(0, buckets, buckets_per_shard):
                name = f"{split}-{bucket:05d}-{pass_number:02d}"
                path = build.path("instances", str(length), f"{name}.arrow")
                count = min(buckets_per_shard, buckets - bucket)
                task = InstanceTask(build.folder, split, bucket, count, options, path)
                # Another number of passes may put another number of buckets into each shard.
                record = f"{name} of {count}"
                yield build.unit(f"instances-{length}", record, write_shard, task, group=f"{length} {split}")


def write_shard(task: InstanceTask) -> tuple[list[Path], Counts]:
    """Write the shard of a task, bucket by bucket, and its lengths index; no instances give no file."""
    metadata, folder = task.options.metadata, task.folder / "tokenizer"
    tokenizer = tokenizer_of(folder)
    tokenizer.forget_spans()  # step 3 may have filled this cache in the same process
    documents = documents_of(task.folder / "documents", task.split, tokenizer.vocab_size)
    tally, sizes = Tally(), []
    # The original draws its random Bs from all of the text again; here they are part of it.
    with_random, starts = metadata.pairing != "google", documents.first_tokens
    tally.add({"text": {"tokens": int(starts[task.bucket + task.buckets] - starts[task.bucket]), "used": 0}})

    def parts() -> Iterator[pa.RecordBatch]:
        for bucket in range(task.bucket, task.bucket + task.buckets):
            pairs = make_pairs(documents, bucket, task.options, folder)
            if not pairs.size:
                continue
            tally.add({"text": {"used": pairs.count_text(with_random=with_random)}})
            # Pairs are ranges of tokens. From here on they are rows: [CLS] A [SEP] B [SEP], masked.
            instances = mask(assemble(documents, pairs, metadata), pairs, metadata, tokenizer.is_subword)
            tally.add(count_instances(instances, metadata))
            sizes.append([np.diff(instances.token_starts), np.diff(instances.masked_starts)])
            yield to_batch(instances, metadata)

    # Small and as they are in memory: then a loader reads a row for the price of the bytes around it.
    batches = _evenly(parts(), rows_per_batch(metadata.max_seq_length))
    first = next(batches, None)
    if first is None:
        return [], {"rows": 0, **tally.of()}
    write_batches(task.path, instance_schema(metadata), chain([first], batches))
    # The index has the length of each instance and, if the shard has masks, how many positions are predicted in it.
    kinds = 1 if metadata.masking == "dynamic" else 2
    index_file = write_lengths(task.path, *np.concatenate(sizes, axis=1)[:kinds])
    return [task.path, index_file], tally.of()


def _evenly(parts: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Cut record batches anew, so that all but the last one have ``rows`` rows."""
    rest: pa.RecordBatch | None = None
    for part in parts:
        if rest is not None:
            head = part.slice(0, rows - len(rest))
            (rest,) = pa.Table.from_batches([rest, head]).combine_chunks().to_batches()
            if len(rest) < rows:
                continue
            yield rest
            part = part.slice(len(head))
        whole = len(part) // rows * rows
        yield from (part.slice(first, rows) for first in range(0, whole, rows))
        rest = part.slice(whole) if whole < len(part) else None
    if rest is not None:
        yield rest


def shard_of(outcome: Outcome) -> tuple[int, int, int, str] | None:
    """Return rows, tokens, masked tokens and hash of a shard, for the manifest; None if it has no file."""
    for name, file in outcome.files.items():
        if name.endswith(".arrow"):  # not the index next to it
            rows, tokens, masked = (index(outcome.counts[key]) for key in ("rows", "tokens", "masked_tokens"))
            return rows, tokens, masked, file.sha256
    return None


def _manifest(
    build: RunningBuild, metadata: ShardMetadata, shards: list[ShardEntry], results: Results, corpus: Counts
) -> Manifest:
    splits = [split for split in SPLITS if any(shard.split == split for shard in shards)]
    if "train" not in splits:
        length = metadata.max_seq_length
        least = f", or lower --min-tokens (now {n})" if (n := build.config.least_tokens(length)) else ""
        left_out = corpus["dropped"].get("documents_without_weight")
        weights = f" (the weights of their sources leave out {left_out:,} documents: raise them)" if left_out else ""
        raise DataError(
            f"{build.folder}: the training documents gave no instance of length {length}{weights}. Give more text"
            f"{least}."
        )
    counts = {split: results.tally.of(f"{metadata.max_seq_length} {split}") for split in splits}
    text = {split: own.pop("text") for split, own in counts.items()}
    for own in text.values():  # tokens by which a random B was lengthened may be in a pair of another bucket as well
        own["used"] = min(own["used"], own["tokens"])
    return Manifest(
        metadata=metadata,
        shards=shards,
        config=build.config.recorded(),
        versions=build.state.versions,
        statistics={"corpus": corpus, "instances": counts, "text": text},
        tokenizer_files={path.name: sha256_file(path) for path in tokenizer_files(build.path("tokenizer"))},
    )


def _copy_tokenizer(source: Path, folder: Path) -> None:
    """Copy a tokenizer's folder. A copy that is there already is left alone: a training may be reading it."""
    names = [name for name in TOKENIZER_FILES if any((parent / name).exists() for parent in (source, folder))]
    _, different, missing = filecmp.cmpfiles(source, folder, names, shallow=False)
    if not different and not missing:
        return
    with publish_folder(folder) as temporary:
        copy_tokenizer(source, temporary)
