"""The tokenizer of a build: trained on the extracted text, or taken over; written whole or not at all."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from data_prep.arrow_files import open_mapped
from data_prep.units import Counts
from data_prep.vocabulary import VocabularyOptions, require_bars, train_vocabulary
from megabert.tokenization import Tokenizer, load_tokenizer


@dataclass(frozen=True)
class VocabularyTask:
    """Where the text is, or whose tokenizer to take."""

    sources: tuple[Path, ...]
    tokenizer: Path | None
    options: VocabularyOptions
    folder: Path


def make_tokenizer(task: VocabularyTask) -> tuple[list[Path], Counts]:
    """Write the tokenizer in Hugging Face form.

    Raises:
        DataError: The vocabulary loses text, or the given tokenizer cannot be used.
    """
    report: list[str] = []
    if task.tokenizer is not None:
        tokenizer = load_tokenizer(task.tokenizer)
    else:
        tokenizer, measured = train_vocabulary(extracted_texts(task.sources), task.options)
        require_bars(measured)
        report = measured.lines()
    return save_tokenizer(tokenizer, task.folder), {"report": report}


def extracted_texts(paths: tuple[Path, ...]) -> Iterator[tuple[str, str]]:
    """Yield (hash, text) of each extracted document."""
    for path in paths:
        reader = open_mapped(path)
        for index in range(reader.num_record_batches):
            batch = reader.get_batch(index)
            for document_hash, sentences in zip(
                batch["document_hash"].to_pylist(), batch["sentences"].to_pylist(), strict=True
            ):
                yield f"{document_hash:016x}", "\n".join(sentences)


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> list[Path]:
    """Write a tokenizer's folder whole or not at all, in place of an older one; return its files."""
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.parent.mkdir(parents=True, exist_ok=True)
        tokenizer.save(temporary)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return sorted(path for path in folder.iterdir() if path.is_file())
