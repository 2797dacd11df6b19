"""``megabert-data vocab``."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from data_prep.commands.options import add_config_argument, add_source_arguments, make_config
from data_prep.config import BuildConfig
from data_prep.extract import InputChunk, find_files, plan_chunks
from data_prep.steps.step1_extract import DocumentReader, ExtractTask, hash_document
from data_prep.steps.step2_vocabulary import save_tokenizer
from data_prep.vocabulary_training import VocabularyOptions, require_bars, train_vocabulary
from megabert.errors import DataError
from megabert.tokenization import Pieces


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    add_source_arguments(parser)
    parser.add_argument("--output", type=Path, required=True, help="new folder for the tokenizer")
    add_config_argument(parser, "pieces", choices=get_args(Pieces))
    add_config_argument(parser, "vocab_size", type=int)
    add_config_argument(parser, "uncased", action="store_true")


def run(arguments: argparse.Namespace) -> int:
    """Train, measure, save, print the report."""
    config = make_config(arguments, ["pieces", "vocab_size", "uncased"])
    if arguments.output.exists() and any(arguments.output.iterdir()):
        raise DataError(f"{arguments.output}: is not empty. Give --output a new folder.")
    options = VocabularyOptions(pieces=config.pieces, vocab_size=config.vocab_size, uncased=config.uncased)
    chunks = plan_chunks(find_files(config.sources), config.chunk_bytes)
    tokenizer, report = train_vocabulary(_texts(config, chunks), options)
    require_bars(report)
    save_tokenizer(tokenizer, arguments.output)
    print("\n".join([*report.lines(), f"tokenizer {arguments.output}"]))
    return 0


def _texts(config: BuildConfig, chunks: list[InputChunk]) -> Iterator[tuple[str, str]]:
    for number, chunk in enumerate(chunks):
        task = ExtractTask(chunk, number, config.language, config.clean, config.max_bad_share == 0, Path())
        for paragraphs in DocumentReader(task).documents():
            if paragraphs:
                yield f"{hash_document(paragraphs):016x}", "\n".join(paragraphs)
