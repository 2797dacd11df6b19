"""``megabert-data build``: text to shards of pre-training instances."""

import sys
from argparse import Namespace
from pathlib import Path

import yaml

from data_prep.checks.stats import describe_corpus, describe_split, share, tokens_read
from data_prep.commands.options import add_source_arguments, add_worker_arguments, make_config
from data_prep.config import BuildConfig
from data_prep.execution.executors import Executor, executor_of_all_ranks
from data_prep.extract import find_files, plan_chunks
from data_prep.pipeline import Built, build
from megabert.command_line.arguments import add_stops
from megabert.command_line.parser import Parser

MAX_UNKNOWN_SHARE = 0.005
"""Share of [UNK] above which a build warns that the tokenizer does not fit the text."""


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    parser.description = "Make shards of pre-training instances from text: clean, split, tokenize, pair, mask, write."
    parser.examples = [
        "megabert-data build --input 'texts/*.txt' --output data/mine --vocab-size 30522 --lengths 128 512",
        "megabert-data build --config build.yaml --output data/mine",
    ]
    add_source_arguments(parser)
    text = "folder of the build; the same command continues it"
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help=text)
    add_worker_arguments(parser)
    add_stops(parser, dry_run="check and list the inputs")
    instances = ("lengths", "objective", "dupe-factor", "validation-share")
    parser.add_fields(
        BuildConfig,
        first=("input", "output", "config", "tokenizer", "vocab-size", "uncased", *instances, "workers", "dry-run"),
        sections=("sources.N", "clean"),
    )


def run(options: Namespace) -> int:
    """Build, then print a summary; with MPI on rank 0."""
    with executor_of_all_ranks(options.workers, is_mpi=options.mpi) as executor:
        return 0 if executor is None else _run(options, executor)


def _run(options: Namespace, executor: Executor) -> int:
    config = make_config(options)
    if options.print_config:
        print(yaml.safe_dump(config.to_dict(), sort_keys=False), end="")
        return 0
    if options.dry_run:
        return _show_plan(config)
    built = build(config, options.output, executor)
    print("\n".join(summary(built)))
    corpus = next(iter(built.manifests.values())).statistics["corpus"]
    if corpus["unknown_tokens"] > MAX_UNKNOWN_SHARE * tokens_read(corpus):
        share_text = share(corpus["unknown_tokens"], tokens_read(corpus))
        print(f"warning: {share_text} of the tokens are [UNK]: the tokenizer does not fit the text", file=sys.stderr)
    return 0


def _show_plan(config: BuildConfig) -> int:
    files = find_files(config.sources)
    for file in files:
        kind = f"{file.compression} {file.format}".strip()
        print(f"{file.path}: {file.bytes:,} bytes, {kind}, {file.encoding}")
    chunks = plan_chunks(files, config.chunk_bytes)
    print(f"{len(files)} files, {sum(file.bytes for file in files):,} bytes, {len(chunks)} units to read")
    return 0


def summary(built: Built) -> list[str]:
    """Return the lines printed at the end of a build."""
    corpus = next(iter(built.manifests.values())).statistics["corpus"]
    lines = [*built.vocabulary_report, *describe_corpus(corpus)]
    for length, manifest in built.manifests.items():
        for split, counts in manifest.statistics["instances"].items():
            first, *rest = describe_split(counts, manifest.metadata)
            lines += [f"length {length} {split}: {first}", *(f"  {line}" for line in rest)]
    return [*lines, f"tokenizer {built.folder / 'tokenizer'}", f"shards {built.folder / 'instances'}"]
