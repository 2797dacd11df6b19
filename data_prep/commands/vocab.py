"""Train a vocabulary alone: same files and flags as a build.

Arguments:
  --output DIR  new folder for the tokenizer

Example:
  megabert-data vocab --input 'texts/*.jsonl' --output vocabularies/mine --vocab-size 30522
"""

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from data_prep.checks.corpus_counts import require_readable
from data_prep.clean.grouped_hashes import text_hash
from data_prep.commands.options import add_source_arguments, make_config, require_named
from data_prep.config.build import BuildConfig
from data_prep.config.cleaning import CORPUS_RULES
from data_prep.execution.records import Counts, add_counts
from data_prep.extract.first_look import say_readings
from data_prep.extract.inputs import find_files, plan_chunks
from data_prep.extract.opening import InputChunk
from data_prep.steps.document_reader import DocumentReader, ExtractTask
from data_prep.steps.step2_vocabulary import vocabulary_options
from data_prep.vocabulary.quality import require_bars
from data_prep.vocabulary.training import train_vocabulary
from megabert.foundation.errors import ConfigError, DataError
from megabert.foundation.whole_folders import publish_folder
from megabert.settings.command_line.parser import Parser
from megabert.tokens.tokenization import save_huggingface

LATER = (
    *("tokenizer", "lengths", "objective", "pairing", "masking", "mask_unit", "dupe_factor", "short_seq_prob"),
    *("masked_lm_prob", "max_predictions_per_seq", "min_tokens", "buckets", "shard_mib", "seed", "validation_share"),
)
"""Fields of a build that change nothing of a vocabulary."""


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    add_source_arguments(parser)
    parser.add_argument("--output", type=Path, required=True)
    first = ("input", "output", "config", "pieces", "vocab-size", "spare-pieces", "uncased", "clean", "max-bad-share")
    parser.add_fields(BuildConfig, first=first, without=LATER)


def run(options: Namespace) -> None:
    """Train, measure, save, print the report."""
    config = make_config(options)
    if config.holds_ids:
        raise ConfigError(
            "vocab trains a vocabulary on text, and format ids has its own already. `megabert-data build` takes it: a "
            "table (--symbols), a tokenizer (--tokenizer), or --vocab-size with --special-ids."
        )
    if options.output.exists() and any(options.output.iterdir()):
        raise DataError(f"{options.output}: is not empty. Give --output a new folder.")
    of_all = [rule for rule in config.clean.rules if rule in CORPUS_RULES]
    if config.tokenizer or of_all:
        named = f"tokenizer={config.tokenizer}" if config.tokenizer else f"clean.rules={', '.join(of_all)}"
        why = "says the vocabulary already" if config.tokenizer else "compares all documents, which vocab reads once"
        raise ConfigError(f"{named}: {why}. Leave it out, or use `megabert-data build`, whose first step it is.")
    files = find_files(config.sources)
    say_readings(config, files)
    require_named(config, options.output)
    chunks = plan_chunks(files, config.chunk_bytes)
    with publish_folder(options.output) as temporary:
        tokenizer, report = train_vocabulary(_texts(config, chunks), vocabulary_options(config))
        require_bars(report)
        save_huggingface(tokenizer, temporary)
    print("\n".join([*report.lines(), f"tokenizer {options.output}"]))


def _texts(config: BuildConfig, chunks: list[InputChunk]) -> Iterator[tuple[str, str]]:
    """Yield a key and the text of every document that can be read; refuse the input if too many cannot."""
    parts: list[Counts] = []
    for number, chunk in enumerate(chunks):
        documents, reader = 0, DocumentReader(ExtractTask(chunk, number, config, Path()))
        for paragraphs in reader.documents():
            documents += 1
            if paragraphs:
                yield f"{text_hash(paragraphs):016x}", "\n".join(paragraphs)
        of_source = {str(chunk.file.source): documents + reader.dropped}
        parts.append({"documents": of_source, "bytes": chunk.bytes, **reader.report()})
    require_readable(config, add_counts(parts))
