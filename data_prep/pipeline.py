"""The build: stages in order, each a list of units; the manifests last.

    extract -> tokenizer -> tokens -> documents (buckets, index) -> instances -> manifests

Every stage's units depend on the inputs and the configuration alone, so any number of workers and any number
of interruptions give the same bytes.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.config import BuildConfig
from data_prep.execution.build_state import lock_folder, remember
from data_prep.execution.executors import Executor
from data_prep.execution.progress import Progress
from data_prep.execution.work_units import Outcome, Unit, add_counts, all_finished, run_stage
from data_prep.extract import InputFile, find_files, plan_chunks
from data_prep.instances.pairs import PairOptions
from data_prep.steps.corpus import corpus_counts, extract_units, require_documents, require_pairs
from data_prep.steps.step2_vocabulary import VocabularyTask, make_tokenizer, save_tokenizer
from data_prep.steps.step3_tokenize import SPLITS, TokenizeTask, document_schema, tokenize, tokenizer_of
from data_prep.steps.step4_merge_chunks import Part, SpreadTask, plan_parts, spread
from data_prep.steps.step5_bucket import (
    BucketTask,
    DocumentSet,
    IndexTask,
    bucket_path,
    build_index,
    fill_bucket,
    hash_range,
)
from data_prep.steps.step6_instances import InstanceTask, make_instances
from data_prep.vocabulary_training import VocabularyOptions
from megabert.errors import DataError
from megabert.schema import Manifest, ShardEntry, ShardMetadata, atomic_write, read_manifest, write_manifest
from megabert.tokenization import Tokenizer, load_tokenizer

BUCKET_TOKENS = 5_000_000
MIN_BUCKETS = 4
DOCUMENTS_A_BUCKET = 8  # fewer make empty buckets likely


@dataclass(frozen=True)
class Built:
    """A finished build."""

    folder: Path
    manifests: dict[int, Manifest]
    """By length."""
    vocabulary_report: list[str]
    """Lines on the trained vocabulary; empty for one taken over."""


@dataclass(frozen=True)
class Build:
    """One build on its way."""

    folder: Path
    config: BuildConfig
    executor: Executor
    versions: dict[str, str]
    """Packages that the build was begun with."""

    def path(self, *parts: str) -> Path:
        """Return a path inside the build's folder."""
        return self.folder.joinpath(*parts)

    def unit(self, stage: str, name: str, function: Any, argument: Any) -> Unit:
        """Return a unit of a stage."""
        return Unit(self.folder, stage, name, function, argument, self.versions)


def build(config: BuildConfig, output: Path, executor: Executor) -> Built:
    """Make shards from text, or finish what an earlier run began.

    Args:
        config: What to build.
        output: Folder of the build.
        executor: Who does the work; entered and left here.

    Raises:
        ConfigError: The folder was begun with another configuration.
        DataError: Input, tokenizer or corpus are unfit; the message says where and what helps.
    """
    files = find_files(config.sources)
    if config.tokenizer is not None:
        load_tokenizer(Path(config.tokenizer))  # an unfit one is refused before anything is written
    with lock_folder(output), executor:
        state = remember(output, config, files, executor)
        task = Build(output, config, executor, state["versions"])
        corpus, report = _make_documents(task, files)
        manifests = _make_instances(task, corpus)
        for part in ("paragraphs", "extract", "tokens", "spread"):
            shutil.rmtree(task.path("work", part), ignore_errors=True)
            shutil.rmtree(task.path("work", "records", part), ignore_errors=True)
    return Built(output, manifests, report)


def _make_documents(build: Build, files: list[InputFile]) -> tuple[dict[str, Any], list[str]]:
    """Run the stages up to the documents; return the corpus counts and the report on the vocabulary."""
    plan_path = build.path("work", "plan.json")
    if plan_path.is_file():
        plan = json.loads(plan_path.read_bytes())
        schema = document_schema(plan["vocab_size"])
        units = [*_bucket_units(build, (), plan["buckets"], schema), *_index_units(build, plan["buckets"])]
        if all_finished([_tokenizer_unit(build, ()), *units], build.executor):
            return plan["corpus"], plan["report"]
    chunks = plan_chunks(files, build.config.chunk_bytes)
    units = extract_units(build, chunks)
    outcomes = run_stage(units, build.executor, _progress("extract", units, "bytes", 1e6, "MB/s"))
    extracted = [build.folder / name for outcome in outcomes for name in sorted(outcome.files)]
    found = add_counts(outcomes)
    require_documents(build.config, found)
    made = run_stage([_tokenizer_unit(build, tuple(extracted))], build.executor, _progress("tokenizer", [0]))
    tokens, token_counts = _tokenize(build, extracted)
    buckets = _count_buckets(build.config, token_counts)
    tokenizer = tokenizer_of(build.path("tokenizer"))
    kept = _run_documents(build, tokens, buckets, document_schema(tokenizer.vocab_size))
    corpus = corpus_counts(build.config, found, token_counts, kept)
    require_pairs(build.config, corpus)
    report = made[0].counts["report"]
    plan = {"buckets": buckets, "corpus": corpus, "report": report, "vocab_size": tokenizer.vocab_size}
    atomic_write(plan_path, json.dumps(plan))
    return corpus, report


def _tokenizer_unit(build: Build, sources: tuple[Path, ...]) -> Unit:
    config = build.config
    options = VocabularyOptions(pieces=config.pieces, vocab_size=config.vocab_size, uncased=config.uncased)
    given = None if config.tokenizer is None else Path(config.tokenizer)
    task = VocabularyTask(sources, given, options, build.path("tokenizer"))
    return build.unit("tokenizer", "tokenizer", make_tokenizer, task)


def _tokenize(build: Build, extracted: list[Path]) -> tuple[list[Path], dict[str, Any]]:
    paths = [build.path("work", "tokens", path.name) for path in extracted]
    share = build.config.validation_share
    units = [
        build.unit("tokens", path.stem, tokenize, TokenizeTask(source, build.path("tokenizer"), share, path))
        for source, path in zip(extracted, paths, strict=True)
    ]
    return paths, add_counts(run_stage(units, build.executor, _progress("tokens", units, "tokens", 1e6, "Mtokens/s")))


def _run_documents(build: Build, tokens: list[Path], buckets: dict[str, int], schema: Any) -> dict[str, Any]:
    parts = plan_parts(tokens, build.path("work", "spread"), buckets["train"])
    units = [build.unit("spread", part.path.stem, spread, SpreadTask(part, schema)) for part in parts if part.is_merged]
    if units:
        run_stage(units, build.executor, _progress("spread", units, "tokens", 1e6, "Mtokens/s"))
    units = _bucket_units(build, parts, buckets, schema)
    counts = add_counts(run_stage(units, build.executor, _progress("documents", units, "tokens", 1e6, "Mtokens/s")))
    units = _index_units(build, buckets)
    run_stage(units, build.executor, _progress("index", units))
    return counts


def _bucket_units(build: Build, parts: Sequence[Part], buckets: dict[str, int], schema: Any) -> list[Unit]:
    folder = build.path("documents")
    weights = tuple(source.weight for source in build.config.sources)
    is_deduplicated = "duplicate_documents" in build.config.clean.rules
    units = []
    for split, count in buckets.items():
        for bucket in range(count):
            path = bucket_path(folder, split, bucket)
            tokens = tuple(part.path for part in parts if part.overlaps(*hash_range(bucket, count)))
            task = BucketTask(tokens, split, bucket, count, schema, path, weights, is_deduplicated)
            units.append(build.unit("documents", f"{split}-{bucket:05d}", fill_bucket, task))
    return units


def _index_units(build: Build, buckets: dict[str, int]) -> list[Unit]:
    folder = build.path("documents")
    return [
        build.unit("index", split, build_index, IndexTask(folder, split, count)) for split, count in buckets.items()
    ]


def _count_buckets(config: BuildConfig, counts: dict[str, Any]) -> dict[str, int]:
    """Return the number of buckets of each split that has documents; of the corpus, never of the workers."""
    train, validation = counts["documents"]
    automatic = max(1, min(max(MIN_BUCKETS, -(-counts["tokens"] // BUCKET_TOKENS)), train // DOCUMENTS_A_BUCKET))
    buckets = {"train": config.buckets or automatic}
    if validation:
        buckets["validation"] = max(1, round(buckets["train"] * config.validation_share))
    return buckets


def _progress(title: str, units: list[Any], measure: str = "", scale: float = 1.0, label: str = "") -> Progress:
    return Progress(title, len(units), measure=measure, scale=scale, label=label)


def _make_instances(build: Build, corpus: dict[str, Any]) -> dict[int, Manifest]:
    """Run the instance stage for all lengths at once, then write one manifest a length."""
    tokenizer = tokenizer_of(build.path("tokenizer"))
    units = {length: _instance_units(build, length, tokenizer) for length in build.config.lengths}
    flat = [unit for part in units.values() for unit in part]
    outcomes = iter(run_stage(flat, build.executor, _progress("instances", flat, "rows", 1e3, "k instances/s")))
    manifests = {}
    for length, part in units.items():
        metadata = _metadata(build.config, length, tokenizer)
        shards = [(unit, outcome) for unit, outcome in zip(part, outcomes, strict=False) if outcome.files]
        manifests[length] = _manifest(build, metadata, shards, corpus)
    for length, manifest in manifests.items():
        folder = build.path("instances", str(length))
        save_tokenizer(tokenizer, folder / "tokenizer")
        manifests[length] = _keep_or_write(folder, manifest)
    return manifests


def _keep_or_write(folder: Path, manifest: Manifest) -> Manifest:
    """Write a manifest, unless the one that is there says that the same shards are finished."""
    try:
        found = read_manifest(folder)
    except DataError:
        found = None
    if found is not None and found.data_sha256 == manifest.data_sha256:
        return found
    write_manifest(folder, manifest)
    return manifest


def _instance_units(build: Build, length: int, tokenizer: Tokenizer) -> list[Unit]:
    """Return a unit for each pass over each bucket; held-out documents are passed over once."""
    config, documents = build.config, build.path("documents")
    metadata = _metadata(config, length, tokenizer)
    units = []
    for split in SPLITS:
        if split == "validation" and not (documents / "validation-buckets.npy").is_file():
            continue
        buckets = len(DocumentSet.open(documents, split).bucket_starts) - 1
        for duplicate in range(config.dupe_factor if split == "train" else 1):
            options = PairOptions(
                objective=config.objective,
                pairing=config.pairing,
                max_seq_length=length,
                short_seq_prob=config.short_seq_prob,
                seed=config.seed,
                duplicate=duplicate,
            )
            for bucket in range(buckets):
                name = f"{split}-{bucket:05d}-{duplicate:02d}"
                path = build.path("instances", str(length), f"{name}.arrow")
                task = InstanceTask(documents, build.path("tokenizer"), split, bucket, options, metadata, path)
                units.append(build.unit(f"instances-{length}", name, make_instances, task))
    return units


def _metadata(config: BuildConfig, length: int, tokenizer: Tokenizer) -> ShardMetadata:
    return ShardMetadata(
        objective=config.objective,
        pairing=config.pairing,
        masking=config.masking,
        mask_unit=config.mask_unit,
        max_seq_length=length,
        max_predictions_per_seq=config.max_predictions(length),
        seed=config.seed,
        tokenizer_sha256=tokenizer.sha256,
        special_ids=tokenizer.special_ids.to_dict(),
        vocab_size=tokenizer.vocab_size,
        masked_lm_prob=config.masked_lm_prob,
    )


def _manifest(
    build: Build,
    metadata: ShardMetadata,
    shards: list[tuple[Unit, Outcome]],
    corpus: dict[str, Any],
) -> Manifest:
    entries, counts = [], {}
    for split in SPLITS:
        part = [(unit.argument, outcome) for unit, outcome in shards if unit.argument.split == split]
        if part:
            counts[split] = add_counts([outcome for _, outcome in part])
        for task, outcome in part:
            rows, tokens, masked = (outcome.counts[key] for key in ("rows", "tokens", "masked_tokens"))
            (digest,) = outcome.files.values()
            duplicate = task.options.duplicate
            entries.append(ShardEntry(task.path.name, split, rows, tokens, masked, digest, task.bucket, duplicate))
    if not any(entry.split == "train" for entry in entries):
        raise DataError(f"{build.folder}: the training documents gave no instance. Give more text.")
    return Manifest(
        metadata=metadata,
        shards=entries,
        config=build.config.to_dict(),
        versions=build.versions,
        statistics={"corpus": corpus, "instances": counts},
    )
