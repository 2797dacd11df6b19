"""``megabert-data build``."""

import argparse
import sys
from pathlib import Path
from typing import Any, get_args

import yaml

from data_prep.checks.stats import describe_corpus, describe_split, share, tokens_read
from data_prep.commands.options import add_config_argument, add_source_arguments, add_worker_arguments, make_config
from data_prep.config import BuildConfig
from data_prep.execution.executors import Executor, executor_of_all_ranks
from data_prep.extract import find_files, plan_chunks
from data_prep.pipeline import Built, build
from megabert.tokenization import Pieces

MAX_UNKNOWN_SHARE = 0.005

FIELDS: dict[str, dict[str, Any]] = {
    "tokenizer": {"metavar": "HF_FOLDER"},
    "pieces": {"choices": get_args(Pieces)},
    "vocab_size": {"type": int},
    "uncased": {"action": "store_true"},
    "max_bad_share": {"type": float},
    "language": {},
    "lengths": {"type": int, "nargs": "+"},
    "objective": {"choices": ("nsp", "sop", "none")},
    "pairing": {"choices": ("balanced", "google")},
    "masking": {"choices": ("static", "dynamic")},
    "mask_unit": {"choices": ("token", "whole_word", "span")},
    "dupe_factor": {"type": int},
    "short_seq_prob": {"type": float},
    "masked_lm_prob": {"type": float},
    "max_predictions_per_seq": {"type": int, "nargs": "+"},
    "validation_share": {"type": float},
    "seed": {"type": int},
    "buckets": {"type": int},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    add_source_arguments(parser)
    parser.add_argument("--output", type=Path, required=True, help="folder of the build; the same command continues it")
    for name, options in FIELDS.items():
        add_config_argument(parser, name, **options)
    add_worker_arguments(parser)
    parser.add_argument("--print-config", action="store_true", help="print the resolved configuration and stop")
    parser.add_argument("--dry-run", action="store_true", help="check and list the inputs and stop")


def run(arguments: argparse.Namespace) -> int:
    """Build, then print a summary; with MPI on rank 0."""
    with executor_of_all_ranks(arguments.workers, is_mpi=arguments.mpi) as executor:
        return 0 if executor is None else _run(arguments, executor)


def _run(arguments: argparse.Namespace, executor: Executor) -> int:
    config = make_config(arguments, list(FIELDS))
    if arguments.print_config:
        print(yaml.safe_dump(config.to_dict(), sort_keys=False), end="")
        return 0
    if arguments.dry_run:
        return _show_plan(config)
    built = build(config, arguments.output, executor)
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
