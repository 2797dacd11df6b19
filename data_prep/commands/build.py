"""Make shards of pre-training instances from text.

It cleans, splits, tokenizes, pairs, masks and writes.

Arguments:
  --output DIR|URL     folder of the build; the same command continues it; or a URL, to which its shards are uploaded at
                       the end
  --build-dir DIR      folder of a build whose --output is a URL (default: the URL's last part, in this folder)
  --ignore-disk-space  begin although the disk has less free space than the build is going to take

Examples:
  megabert-data build --for bert_base_1gpu --input 'texts/*.txt' --output data/mine
  megabert-data build --input 'texts/*.txt' --output data/mine --vocab-size 30522 --lengths 128 512
  megabert-data build --config build.yaml --output data/mine
  megabert-data build --for bert_base --input 'texts/*.txt' --output s3://bucket/mine --build-dir work/mine
"""

import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from data_prep.checks.corpus_counts import LOST_ENDS, counted
from data_prep.checks.stats import describe_corpus, describe_split, reporting_damage, share
from data_prep.commands.estimate import estimate_lines
from data_prep.commands.options import add_source_arguments, add_worker_arguments, make_config, require_named
from data_prep.config.build import BuildConfig
from data_prep.execution.build_state import describe_repeats, read_state, require_possible_change
from data_prep.execution.changes import PLAN_NAME
from data_prep.execution.executors import Executor
from data_prep.execution.mpi import executor_of_all_ranks
from data_prep.execution.records import Counts
from data_prep.extract.first_look import describe_readings, warn_of_likely_mistakes
from data_prep.extract.inputs import find_files, plan_chunks
from data_prep.pipeline import BuildResult, build_shards
from data_prep.planning.estimate import estimate
from data_prep.planning.text_sample import foresee_enough, sample_text
from data_prep.upload import require_target, upload_build
from megabert.foundation.errors import without_secrets
from megabert.foundation.remote_files import is_url
from megabert.settings.command_line.parser import Parser, refuse_flags
from megabert.settings.config import loading

MAX_UNKNOWN_SHARE = 0.005
"""Share of [UNK] above which a build warns that the tokenizer does not fit the text."""
MIN_RANDOM_SHARE, MIN_MASKED_SHARE, FEW_INSTANCES = 0.25, 0.5, 8
"""Share of random next sentences (half are wanted) and of the predictions that are wanted, below which a build warns,
and the number of instances from which it is judged."""


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    add_source_arguments(parser)
    parser.add_argument("--output", required=True)
    parser.add_argument("--build-dir", type=Path)
    add_worker_arguments(parser)
    parser.add_stops(dry_run="check and list the inputs, estimate what the build takes")
    parser.add_argument("--ignore-disk-space", action="store_true")
    parser.add_fields(
        BuildConfig,
        first=(
            *("for", "input", "output", "config", "tokenizer", "vocab-size", "uncased"),
            *("lengths", "objective", "validation-share", "workers", "dry-run"),
        ),
        sections=("sources.N", "clean"),
    )


def run(options: Namespace) -> None:
    """Build, then print a summary; with MPI on rank 0."""
    with executor_of_all_ranks(options.workers, is_mpi=options.mpi) as executor:
        if executor is not None:
            _run(options, executor)


def _run(options: Namespace, executor: Executor) -> None:
    url = options.output if is_url(options.output) else None
    if url is None:
        refuse_flags(["--build-dir"], options.given, "without a URL as --output")
    folder = options.build_dir or Path(options.output.rstrip("/").rpartition("/")[2] if url else options.output)
    read_state(folder)  # names a package that is gone before settings that need it are resolved
    config = make_config(options)
    if options.print_config:
        print(loading.to_yaml(config), end="")
        return
    if url is not None:
        require_target(url, writes=not options.dry_run)
    if options.dry_run:
        _show_plan(config, folder, executor)
        return
    built = build_shards(config, folder, executor, needs_space=not options.ignore_disk_space)
    corpus = next(iter(built.manifests.values())).statistics["corpus"]
    with reporting_damage(folder, f"Delete {PLAN_NAME} and the manifests in it, and run the same build again."):
        print("\n".join(_summary(built, corpus)))
        for warning in warnings_of(built):
            print(f"warning: {warning}", file=sys.stderr)
    if url is not None:
        upload_build(built, url)


def _show_plan(config: BuildConfig, output: Path, executor: Executor) -> None:
    files = find_files(config.sources)
    warn_of_likely_mistakes(files)
    require_named(config, output)
    for file in files:
        kind = f"{file.compression} {file.format}".strip()
        print(f"{without_secrets(file.path)}: {file.bytes:,} bytes, {kind}, {file.encoding}")
    chunks = plan_chunks(files, config.chunk_bytes)
    for line in describe_readings(config, files):
        print(line)
    size = sum(file.bytes for file in files)
    print(f"{len(files)} files, {size:,} bytes, {len(chunks)} units to read")
    if earlier := read_state(output):
        now = config.recorded()
        require_possible_change(output, earlier, now)
        print(describe_repeats(earlier.config, now) or f"{output}: was begun with the same settings, and is continued")
    foresee_enough(config, chunks)
    sample = sample_text(config, files)
    print("\n".join(estimate_lines(estimate(config, files, executor.suited_to(size).workers, sample=sample))))
    for length in config.lengths:
        if least := config.least_tokens(length):
            of_documents, of_text = sample.short_share(least)
            print(
                f"length {length}: of {len(sample.document_tokens):,} documents looked at, about {of_documents:.0%} "
                f"({of_text:.0%} of their text) have fewer than {least:,} tokens and are left out"
            )


def warnings_of(built: BuildResult) -> Iterator[str]:
    """Yield warnings of losses, of labels and of lengths in a finished build."""
    corpus = next(iter(built.manifests.values())).statistics["corpus"]
    yield from (*_warnings(corpus), *_label_warnings(built), *_length_warnings(built))


def _warnings(corpus: Counts) -> Iterator[str]:
    """Yield a line on each kind of lost text, and on a tokenizer that does not fit."""
    for kind, places in corpus.get("examples", {}).items():
        if number := corpus["dropped"].get(kind):
            lost = "what follows is not in the shards" if kind in LOST_ENDS else "not in the shards"
            yield f"{counted(number, kind)}: {lost}: {places[0]}"
    if corpus["unknown_tokens"] > MAX_UNKNOWN_SHARE * corpus["tokens_read"]:
        share_text = share(corpus["unknown_tokens"], corpus["tokens_read"])
        yield f"{share_text} of the tokens are [UNK]: the tokenizer does not fit the text"
    if not corpus["validation_documents"]:
        yield "no document is held out, and `megabert pretrain` needs some: raise --validation-share"


def _length_warnings(built: BuildResult) -> Iterator[str]:
    """Yield which lengths lack held-out instances, and which have few predictions because words are long."""
    instances = {length: manifest.statistics["instances"] for length, manifest in built.manifests.items()}
    for length, manifest in built.manifests.items():
        metadata, counts = manifest.metadata, instances[length]["train"]
        if "validation" not in instances[length] and any("validation" in splits for splits in instances.values()):
            yield f"length {length}: no instance is held out, and `megabert pretrain` needs some: lower --min-tokens"
        if metadata.masking != "static" or metadata.mask_unit == "token" or counts["rows"] < FEW_INSTANCES:
            continue
        wanted = min(metadata.masked_lm_prob * counts["tokens"], counts["rows"] * metadata.max_predictions_per_seq)
        if counts["masked_tokens"] < MIN_MASKED_SHARE * wanted:
            found = share(counts["masked_tokens"], counts["tokens"])
            yield (
                f"length {length}: {found} of the tokens are predicted, of {metadata.masked_lm_prob:.0%} that were "
                f"asked for. Words are masked whole ({metadata.mask_unit}), and to this tokenizer many are longer than "
                "an instance's share, as where a script has no spaces. Use --mask-unit token"
            )


def _label_warnings(built: BuildResult) -> Iterator[str]:
    """Yield which shards have few random next sentences or none, because nearly all pairs are of one text."""
    for length, manifest in built.manifests.items():
        if manifest.metadata.objective != "nsp":
            continue
        for split, counts in manifest.statistics["instances"].items():
            rows, random = counts["rows"], counts["random_next"]
            if rows >= FEW_INSTANCES and random < MIN_RANDOM_SHARE * rows:
                yield (
                    f"length {length} {split}: {share(random, rows)} of {rows:,} instances have a random next "
                    "sentence, as where all documents are copies of one text. Such labels teach nothing: give other "
                    "documents, or use --objective none"
                )


def _summary(built: BuildResult, corpus: Counts) -> list[str]:
    """Return the lines printed at the end of a build."""
    lines = [*built.vocabulary_report, *describe_corpus(corpus)]
    for length, manifest in built.manifests.items():
        for split in manifest.statistics["instances"]:
            first, *rest = describe_split(manifest, split)
            lines += [f"length {length} {split}: {first}", *(f"  {line}" for line in rest)]
    passes = f"passes of a training over them: megabert estimate --recipe NAME --data.path {built.folder}"
    return [*lines, f"tokenizer {built.folder / 'tokenizer'}", f"shards {built.folder / 'instances'}", passes]
