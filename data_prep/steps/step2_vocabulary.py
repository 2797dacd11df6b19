"""The tokenizer of a build: trained on the extracted text, or taken over; written whole or not at all."""

import filecmp
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.arrow_files import open_mapped
from data_prep.execution.work_units import Counts
from data_prep.vocabulary_training import (
    VocabularyOptions,
    check_vocabulary,
    require_bars,
    require_fit,
    train_vocabulary,
)
from megabert.randomness.keyed import mix, string_key
from megabert.schema import sync_file, sync_folder
from megabert.schema.files import NO_SPACE, disk_full
from megabert.tokenization import Tokenizer, load_tokenizer

TRAINING_CHARACTERS = 200_000_000
"""A vocabulary is trained on at most so many: the count of different words takes memory."""
SAMPLE_CHARACTERS = 1_000_000
DOCUMENTS_AT_ONCE = 64
SAMPLE_OPTIONS = VocabularyOptions(held_out_share=0.5)
"""A given tokenizer is measured on half of a sample of documents: it was trained on none of them."""


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
    if task.tokenizer is not None:
        tokenizer = load_tokenizer(task.tokenizer)
        measured = check_vocabulary(tokenizer, _sample(task.sources, SAMPLE_CHARACTERS), SAMPLE_OPTIONS)
        require_fit(measured, where=str(task.tokenizer))
    else:
        tokenizer, measured = train_vocabulary(_sample(task.sources, TRAINING_CHARACTERS), task.options)
        require_bars(measured)
    return save_tokenizer(tokenizer, task.folder), {"report": measured.lines()}


def _sample(paths: tuple[Path, ...], most: int) -> Iterator[tuple[str, str]]:
    """Yield documents of units all over the corpus until there are ``most`` characters."""
    characters = 0
    for index in np.argsort(mix(string_key("vocabulary sample"), np.arange(len(paths))), kind="stable").tolist():
        for name, text in extracted_texts(paths[index : index + 1]):
            yield name, text
            characters += len(text)
            if characters > most:
                return


def extracted_texts(paths: tuple[Path, ...]) -> Iterator[tuple[str, str]]:
    """Yield (hash, text) of each extracted document."""
    for path in paths:
        reader = open_mapped(path)
        for batch in map(reader.get_batch, range(reader.num_record_batches)):
            for first in range(0, batch.num_rows, DOCUMENTS_AT_ONCE):  # a reader may stop early
                part = batch.slice(first, DOCUMENTS_AT_ONCE)
                hashes, documents = part["document_hash"].to_pylist(), part["sentences"].to_pylist()
                for document_hash, sentences in zip(hashes, documents, strict=True):
                    yield f"{document_hash:016x}", "\n".join(sentences)


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> list[Path]:
    """Write a tokenizer's folder whole or not at all, in place of another one; return its files.

    A folder that holds the same files already is left alone.
    """
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.parent.mkdir(parents=True, exist_ok=True)
        tokenizer.save(temporary)
        if not _is_same(temporary, folder):
            for path in temporary.iterdir():
                sync_file(path)
            sync_folder(temporary)
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(temporary, folder)
            sync_folder(folder.parent)
    except OSError as error:
        if error.errno in NO_SPACE:
            raise disk_full(folder) from error
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return sorted(path for path in folder.iterdir() if path.is_file())


def _is_same(new: Path, old: Path) -> bool:
    """Return whether two folders hold the same files with the same bytes."""
    if not old.is_dir():
        return False
    names = sorted(path.name for path in new.iterdir())
    return names == sorted(path.name for path in old.iterdir()) and all(
        filecmp.cmp(new / name, old / name, shallow=False) for name in names
    )
