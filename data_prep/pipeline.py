"""The build of shards from text, as the list of its steps.

    extract -> vocabulary -> tokens -> chunks (merged) -> documents (buckets and index) -> instances and manifests

Each step is a list of units of work. Units depend on the inputs and the configuration alone, so any number of workers
and any number of interruptions give the same bytes; a build that is started again does the rest.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from data_prep.checks.corpus_counts import corpus_counts, require_documents, require_pairs
from data_prep.checks.stats import describe_corpus, reporting_damage
from data_prep.clean import known_documents
from data_prep.clean.known_documents import documents_sha256
from data_prep.config.build import BuildConfig
from data_prep.documents.document_set import EXTRACTED, SPLITS, bucket_path, bucket_schema, documents_of, tokenizer_of
from data_prep.documents.token_files import TokenFiles
from data_prep.execution import build_state
from data_prep.execution.changes import PLAN_NAME, SET_ASIDE, set_aside
from data_prep.execution.executors import Executor
from data_prep.execution.records import Counts
from data_prep.execution.work_units import RunningBuild
from data_prep.extract.first_look import say_readings
from data_prep.extract.inputs import find_files, hash_inputs
from data_prep.extract.opening import InputFile
from data_prep.identification.identifier import require_identifier
from data_prep.planning.estimate import estimate, require_space
from data_prep.planning.text_sample import sample_text
from data_prep.steps import step5_documents
from data_prep.steps.step1_extract import extract_documents, read_ids
from data_prep.steps.step2_vocabulary import train_or_take_vocabulary, vocabulary_unit
from data_prep.steps.step3_tokens import find_held_out_bound, split_documents_again, tokenize_documents
from data_prep.steps.step6_instances import make_instances
from data_prep.vocabulary.symbols import tokenizer_of_ids
from megabert.foundation.errors import DataError
from megabert.foundation.files import atomic_write, read_small
from megabert.foundation.json_files import seal, unseal
from megabert.tokens.shards.folder import Manifest

INTERMEDIATE = ("near", "paragraphs", "extract", "ids", "words", "tokens", "chunks", "before")
"""Folders below ``work`` that are not needed when the documents are made."""
Number = Annotated[int, Field(ge=1, le=1 << 24)]
"""Upper bound of a plausible count: 2^24 buckets hold 8e13 tokens."""


@dataclass(frozen=True)
class BuildResult:
    """A finished build."""

    folder: Path
    """Output folder."""
    manifests: dict[int, Manifest]
    """Manifest of each length."""
    vocabulary_report: list[str]
    """Lines on how the vocabulary fits the text."""


@dataclass(frozen=True)
class DocumentPlan:
    """Outcome of steps 1 to 5: the content of ``work/plan.json``, written when they are done."""

    buckets: dict[str, Number]
    """Number of buckets of each split."""
    extracted: Counts
    """Counts of step 1."""
    tokenized: Counts
    """Counts of step 3."""
    kept: Counts
    """Counts of step 5."""
    report: list[str]
    """Lines on how the vocabulary fits the text."""

    def corpus(self, config: BuildConfig) -> dict[str, Any]:
        """Return the counts of the corpus for the manifests."""
        return corpus_counts(config, self.extracted, self.tokenized, self.kept)


def build_shards(config: BuildConfig, output: Path, executor: Executor, *, needs_space: bool = True) -> BuildResult:
    """Make shards from text, or finish the work of an earlier run.

    Args:
        config: What to build.
        output: Folder of the build.
        executor: Does the work, if there is enough of it; entered and left here.
        needs_space: Whether to refuse to begin if the disk has less space than the build is going to take.

    Raises:
        ConfigError: The folder was begun with another configuration.
        DataError: Input, tokenizer or corpus are unfit; the message says where and what helps.
    """
    tokenizer_of.cache_clear()  # another build in this process may have trained one in the same folder
    files = find_files(config.sources)
    say_readings(config, files)
    require_identifier(config)
    known = known_documents.require_usable(config, output)
    executor = executor.suited_to(sum(file.bytes for file in files))
    if config.holds_ids:
        tokenizer_of_ids(config)
    elif config.tokenizer is not None:
        tokenizer_of(Path(config.tokenizer))  # an unfit one is refused before anything is written
    if needs_space and not (output / build_state.STATE_NAME).exists():
        needed = estimate(config, files, executor.workers, sample=sample_text(config, files))
        print(require_space(needed, output), file=sys.stderr)
    with build_state.lock_folder(output), executor:
        earlier = build_state.read_state(output)
        if earlier is not None:
            build_state.require_possible_change(output, earlier, config.recorded())
        inputs = hash_inputs(files, config, executor, [record.path for record in known])
        known_documents.require_sound(known, inputs)
        state = build_state.remember(output, config, earlier, inputs)
        running = RunningBuild(output, config, executor, state)
        if state.before:
            set_aside(output)
        with _reporting_repeats(earlier, state):
            plan = _finished_documents(running)
            if plan is None:
                with build_state.refusal_noted(output):
                    plan = _make_documents(running, files, state.before)
            if state.before:
                build_state.write_state(output, replace(state, before=""))
            _remove_work(running)
            documents_of.cache_clear()  # another build in this process may have opened the ones before
            # 6. Pairs and masks, for each length and each pass over each bucket.
            corpus = plan.corpus(config) | {"excluded": {name: documents_sha256(name) for name in config.exclude}}
            if own := documents_sha256(output):
                corpus["documents_sha256"] = own
            manifests = make_instances(running, corpus, plan.buckets["train"])
    return BuildResult(output, manifests, plan.report)


@contextmanager
def _reporting_repeats(earlier: build_state.BuildState | None, state: build_state.BuildState) -> Iterator[None]:
    """Print the parts that another setting or input repeats, and how long that took."""
    changes = earlier and build_state.describe_repeats(
        earlier.config, state.config, build_state.other_inputs(earlier.inputs, state.inputs)
    )
    if not changes:
        yield
        return
    print(changes, file=sys.stderr)
    started = time.monotonic()
    yield
    print(f"repeated in {time.monotonic() - started:.1f} s", file=sys.stderr)


def _remove_work(build: RunningBuild) -> None:
    """Delete the files of steps 1 to 4 and their records; a plan that is written needs neither."""
    for part in INTERMEDIATE:
        build.remove(build.path("work", part))
        build.path("work", "records", f"{part}.jsonl").unlink(missing_ok=True)
    build.path(SET_ASIDE[PLAN_NAME]).unlink(missing_ok=True)


def _make_documents(build: RunningBuild, files: list[InputFile], before: str) -> DocumentPlan:
    """Run steps 1 to 5: from the input, or from documents of earlier settings, to shuffled, tokenized documents."""
    tokenized, plan = _split_again(build, before) if before else _tokenize_input(build, files)
    buckets = step5_documents.count_buckets(build.config, plan.tokenized)
    # 4. Many chunks become few files first; of up to 256, nothing is done.
    merged = step5_documents.merge_chunks(build, tokenized, buckets["train"])
    # 5. Each bucket takes a range of hashes out of all of these files: that shuffles the corpus.
    kept = step5_documents.fill_buckets(build, merged, buckets) | plan.kept
    plan = replace(plan, buckets=buckets, kept=kept)
    require_pairs(build.config, plan.corpus(build.config))
    if not before:  # else they are there
        known_documents.write_hashes(build, buckets, sum(kept["documents"].values()))
    atomic_write(build.path(PLAN_NAME), seal(asdict(plan), build.state.context("plan")))
    return plan


def _tokenize_input(build: RunningBuild, files: list[InputFile]) -> tuple[TokenFiles, DocumentPlan]:
    """Run steps 1 to 3; return their files, and a plan that still lacks steps 4 and 5."""
    holds_ids = build.config.holds_ids
    # Ids are checked against the vocabulary while they are read, so there it comes first.
    report = train_or_take_vocabulary(build, (), 0) if holds_ids else []
    # 1. Each chunk of the input becomes a file of cleaned documents, cut into sentences; or of documents of ids.
    documents, extracted = (read_ids if holds_ids else extract_documents)(build, files)
    require_documents(build.config, extracted)
    # Each document has a draw, from the hash of its text. Documents with a draw below this bound are held out.
    schema = bucket_schema(tokenizer_of(build.path("tokenizer")).vocab_size) if holds_ids else EXTRACTED
    held_out_below = find_held_out_bound(build.config, extracted["written"], documents, schema, build.executor)
    # 2. The tokenizer, trained on the whole corpus or, if that is large, on a sample of its documents.
    report = report or train_or_take_vocabulary(build, documents, extracted["characters"])
    # 3. Each of these files becomes one of token ids, its documents sorted by the hash of their text.
    chunks, tokenized = tokenize_documents(build, documents, held_out_below)
    return chunks, DocumentPlan({}, extracted, tokenized, {}, report)


def _split_again(build: RunningBuild, before: str) -> tuple[TokenFiles, DocumentPlan]:
    """Take the documents of earlier settings in place of steps 1 to 3; only their splits change.

    Args:
        build: The build.
        before: Digest that their plan and records are sealed with.
    """
    context = build.state.context("plan", before)
    plan = _read_plan(build, SET_ASIDE[PLAN_NAME], context, build_state.STATE_REMEDY)
    sources = [
        bucket_path(build.path(SET_ASIDE["documents"]), split, bucket)
        for split, count in plan.buckets.items()
        for bucket in range(count)
    ]
    schema = bucket_schema(tokenizer_of(build.path("tokenizer")).vocab_size)
    # The number of documents that step 1 wrote: by it a new build would decide whether to rank them.
    written = sum(plan.tokenized["documents"]) + plan.tokenized["documents_without_tokens"]
    held_out_below = find_held_out_bound(build.config, written, sources, schema, build.executor)
    chunks, held_out = split_documents_again(build, sources, build.state.context("documents", before), held_out_below)
    tokenized = plan.tokenized | {"documents": [sum(plan.tokenized["documents"]) - held_out, held_out]}
    # Duplicates are gone already, so step 5 finds none: their earlier counts stay.
    duplicates = {name: n for name, n in plan.kept.items() if name in ("duplicate_documents", "copies_left_out")}
    return chunks, replace(plan, tokenized=tokenized, kept=duplicates)


def _finished_documents(build: RunningBuild) -> DocumentPlan | None:
    """Return the outcome of an earlier run's steps 1 to 5 if all of their files are there and sound, else None.

    Then the intermediate files, which a finished build deletes, are not needed and not made again.
    """
    if not build.path(PLAN_NAME).exists():
        return None
    try:
        plan = _read_plan(build, PLAN_NAME, build.state.context("plan"), "Steps 1 to 5 are done again.")
    except DataError as error:
        print(f"warning: {error}", file=sys.stderr)
        return None
    if not build.finished([vocabulary_unit(build)]):
        return None
    filled = build.finished(step5_documents.bucket_units(build, None, plan.buckets), keep=step5_documents.bucket_sizes)
    if filled is None or filled.counts["tokens"] != plan.kept["tokens"]:
        return None
    step5_documents.write_index(build, plan.buckets, filled.kept)
    return plan


def _read_plan(build: RunningBuild, name: str, context: str, remedy: str) -> DocumentPlan:
    """Read a plan, and check that a corpus can have its counts.

    Args:
        build: The build.
        name: Path of the plan in its folder.
        context: Context of its seal.
        remedy: The end of the error if it is damaged.
    """
    path = build.path(name)
    plan = unseal(read_small(path), DocumentPlan, context, where=str(path), remedy=remedy)
    with reporting_damage(path, remedy):
        describe_corpus(plan.corpus(build.config))
        if "train" not in plan.buckets or len(plan.tokenized["documents"]) != len(SPLITS):
            raise LookupError("no buckets, or no split")
    return plan
