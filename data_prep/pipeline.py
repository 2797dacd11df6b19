"""The build of shards from text, as the list of its steps.

    extract -> vocabulary -> tokenize -> merge chunks -> buckets and index -> instances and manifests

Each step is a list of units of work. Units depend on the inputs and the configuration alone, so any number of workers
and any number of interruptions give the same bytes; a build that is started again does what is not finished.
"""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from data_prep.checks.stats import as_damage, describe_corpus
from data_prep.config import BuildConfig
from data_prep.document_set import tokenizer_of
from data_prep.estimate import estimate, require_space
from data_prep.execution.build_state import STATE_NAME, lock_folder, refusal_noted, remember
from data_prep.execution.executors import Executor
from data_prep.execution.records import Counts
from data_prep.execution.sealed import seal, unseal
from data_prep.execution.work_units import Build
from data_prep.extract.first_look import warn_of_likely_mistakes
from data_prep.extract.inputs import find_files
from data_prep.extract.opening import InputFile
from data_prep.steps.corpus_counts import corpus_counts, require_documents, require_pairs
from data_prep.steps.held_out import first_trained
from data_prep.steps.step1_extract import extract_documents
from data_prep.steps.step2_vocabulary import train_or_copy_vocabulary, vocabulary_unit
from data_prep.steps.step3_tokenize import tokenize_documents
from data_prep.steps.step4_merge_chunks import merge_chunks
from data_prep.steps.step5_bucket import bucket_sizes, bucket_units, count_buckets, fill_buckets, write_index
from data_prep.steps.step6_instances import count_buckets_a_shard, make_instances
from data_prep.text_sample import sample_text
from megabert.errors import DataError
from megabert.files import atomic_write, read_small
from megabert.shards import Manifest

INTERMEDIATE = ("paragraphs", "extract", "words", "tokens", "chunks")
"""Folders below ``work`` that are not needed when the documents are made."""
Number = Annotated[int, Field(ge=1, le=1 << 24)]
"""A count that is no damage: so many buckets hold 80 million million tokens."""
PLAN_NAME = "work/plan.json"


@dataclass(frozen=True)
class Built:
    """A finished build."""

    folder: Path
    """Output folder."""
    manifests: dict[int, Manifest]
    """Manifest of each length."""
    vocabulary_report: list[str]
    """Lines on how the vocabulary fits the text."""


@dataclass(frozen=True)
class DocumentPlan:
    """What steps 1 to 5 came to: the content of ``work/plan.json``, written when they are done."""

    buckets: dict[str, Number]
    """Number of buckets of each split."""
    corpus: Counts
    """Counts of the corpus for the manifests."""
    report: list[str]
    """Lines on how the vocabulary fits the text."""


def build(config: BuildConfig, output: Path, executor: Executor, *, needs_space: bool = True) -> Built:
    """Make shards from text, or finish what an earlier run began.

    Args:
        config: What to build.
        output: Folder of the build.
        executor: Does the work; entered and left here.
        needs_space: Whether to refuse to begin where the disk has less space than the build is going to take.

    Raises:
        ConfigError: The folder was begun with another configuration.
        DataError: Input, tokenizer or corpus are unfit; the message says where and what helps.
    """
    files = find_files(config.sources)
    warn_of_likely_mistakes(files)
    if config.tokenizer is not None:
        tokenizer_of(Path(config.tokenizer))  # an unfit one is refused before anything is written
    if needs_space and not (output / STATE_NAME).exists():
        needed = estimate(config, files, executor.workers, sample=sample_text(config, files))
        print(require_space(needed, output), file=sys.stderr)
    with lock_folder(output), executor:
        state = remember(output, config, files, executor)
        begun = Build(output, config, executor, state.versions, state.origins)
        plan = _finished_documents(begun)
        if plan is None:
            with refusal_noted(output):
                plan = _make_documents(begun, files)
        _remove_work(begun)
        # 6. Pairs and masks, for each length and each pass over each bucket.
        buckets_a_shard = count_buckets_a_shard(config, plan.buckets["train"], plan.corpus["tokens"])
        manifests = make_instances(begun, plan.corpus, buckets_a_shard)
    return Built(output, manifests, plan.report)


def _remove_work(build: Build) -> None:
    """Delete the files of steps 1 to 4 and their records; a plan that is written needs neither."""
    for part in INTERMEDIATE:
        build.remove(build.path("work", part))
        build.path("work", "records", f"{part}.jsonl").unlink(missing_ok=True)


def _make_documents(build: Build, files: list[InputFile]) -> DocumentPlan:
    """Run steps 1 to 5: from the input to shuffled, tokenized documents."""
    # 1. Each chunk of the input becomes a file of cleaned documents, cut into sentences.
    texts, extracted = extract_documents(build, files)
    require_documents(build.config, extracted)
    documents = sum(extracted["documents"].values()) - extracted["empty_documents"]
    split = first_trained(build.config, documents, texts, build.executor)
    # 2. The tokenizer, trained on the whole corpus or, where that is large, on a sample of its documents.
    report = train_or_copy_vocabulary(build, texts, extracted["characters"])
    vocab_size = tokenizer_of(build.path("tokenizer")).vocab_size
    # 3. Each of these files becomes one of token ids, its documents sorted by the hash of their text.
    chunks, tokenized = tokenize_documents(build, texts, split)
    buckets = count_buckets(build.config, tokenized)
    # 4. Many chunks become few files first; of up to 256, nothing is done.
    merged = merge_chunks(build, chunks, buckets["train"], vocab_size)
    # 5. Each bucket takes a range of hashes out of all of these files: that shuffles the corpus.
    kept = fill_buckets(build, merged, buckets, vocab_size)
    corpus = corpus_counts(build.config, extracted, tokenized, kept)
    require_pairs(build.config, corpus)
    plan = DocumentPlan(buckets, corpus, report)
    atomic_write(build.path(PLAN_NAME), seal(asdict(plan), build.origins.context(PLAN_NAME)))
    return plan


def _finished_documents(build: Build) -> DocumentPlan | None:
    """Return what an earlier run's steps 1 to 5 came to if all that they made is there and sound, else None.

    Then the intermediate files, which a finished build deletes, are not needed and not made again.
    """
    path = build.path(PLAN_NAME)
    if not path.exists():
        return None
    try:
        plan = _read_plan(path, build.origins.context(PLAN_NAME))
    except DataError as error:
        print(f"warning: {error}", file=sys.stderr)
        return None
    if not build.finished([vocabulary_unit(build)]):
        return None
    vocab_size = tokenizer_of(build.path("tokenizer")).vocab_size
    filled = build.finished(bucket_units(build, None, plan.buckets, vocab_size), keep=bucket_sizes)
    if filled is None or filled.counts["tokens"] != plan.corpus["tokens"]:
        return None
    write_index(build, plan.buckets, filled.kept)
    return plan


def _read_plan(path: Path, context: str) -> DocumentPlan:
    remedy = "Steps 1 to 5 are done again."
    plan = unseal(read_small(path), DocumentPlan, context, where=str(path), remedy=remedy)
    with as_damage(path, remedy):  # the corpus is shown at the end, after it has been copied into every manifest
        describe_corpus(plan.corpus)
        if "train" not in plan.buckets:
            raise LookupError("no buckets to train on")
    return plan
