"""Step 2: the tokenizer of the build, trained on the extracted text or copied from a given folder.

Of a large corpus a sample is trained on. A hash of its text decides whether a document is in the sample, so neither the
order of the input nor the way it is cut into files and chunks changes a piece. Where the sample has too many different
words for the memory of a worker, half of it is taken, and half of that.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from data_prep.arrow_files import open_mapped, write_batches
from data_prep.config import BuildConfig
from data_prep.document_set import tokenizer_of
from data_prep.execution.counts import Counts
from data_prep.execution.work_units import Build, Unit
from data_prep.vocabulary_training import (
    VocabularyOptions,
    VocabularyReport,
    check_vocabulary,
    require_bars,
    require_fit,
    train_vocabulary,
)
from megabert.randomness.keyed import mix, string_key, uniform
from megabert.schema import publish_folder
from megabert.tokenization import Tokenizer, TooManyWords, save_huggingface

TRAINING_CHARACTERS = 200_000_000
"""Text that a vocabulary is trained on at most, about: the count of different words takes memory."""
TRAINING_WORDS = 1_500_000
"""Different words that WordPiece is trained on at most; all of them are held in memory."""
SAMPLE_CHARACTERS = 1_000_000
SAMPLE_OPTIONS = VocabularyOptions(held_out_share=0.5)
"""A given tokenizer is measured on half of a sample of documents: it was trained on none of them."""


@dataclass(frozen=True)
class VocabularyTask:
    """Where the text is, or whose tokenizer to take."""

    sources: tuple[Path, ...]
    """Files of extracted documents."""
    config: BuildConfig
    """Names the folder of a given tokenizer, or says what vocabulary to train."""
    folder: Path
    """Output."""
    share: float = 1.0
    """Share of all documents that the files hold."""


@dataclass(frozen=True)
class SampleTask:
    """A file of extracted documents, and where those of the sample go."""

    source: Path
    share: float
    """Share of the documents to take."""
    path: Path
    """Output."""


def train_or_copy_vocabulary(build: Build, texts: Sequence[Path], characters: int) -> list[str]:
    """Make the tokenizer of the build; return the lines of the report on how it fits the text.

    Args:
        build: The build.
        texts: Files of extracted documents.
        characters: Length of all of these.
    """
    share = min(1.0, TRAINING_CHARACTERS / max(characters, 1)) if build.config.tokenizer is None else 1.0
    if share < 1:
        tasks = [SampleTask(path, share, build.path("work", "sample", path.name)) for path in texts]
        build.run("vocabulary sample", [build.unit("sample", task.path.stem, sample, task) for task in tasks])
        texts = [task.path for task in tasks]
    return build.run("vocabulary", [vocabulary_unit(build, texts, share)]).counts["report"]


def sample(task: SampleTask) -> tuple[list[Path], Counts]:
    """Write the documents of a file that are in the sample."""
    reader = open_mapped(task.source)
    batches = (_chosen(reader.get_batch(index), task.share) for index in range(reader.num_record_batches))
    write_batches(task.path, reader.schema, batches)
    return [task.path], {}


def _chosen(batch: pa.RecordBatch, share: float) -> pa.RecordBatch:
    """Return the documents that are in a sample; a smaller sample is a part of a larger one."""
    draws = uniform(mix(np.asarray(batch["document_hash"]), string_key("vocabulary sample")))
    return batch.filter(pa.array(draws < share))


def vocabulary_unit(build: Build, texts: Sequence[Path] = (), share: float = 1.0) -> Unit:
    """Return the only unit of this step; a finished one can be recognized without naming the texts."""
    task = VocabularyTask(tuple(texts), build.config, build.path("tokenizer"), share)
    return build.unit("tokenizer", "tokenizer", make_tokenizer, task)


def make_tokenizer(task: VocabularyTask) -> tuple[list[Path], Counts]:
    """Write the tokenizer in Hugging Face form.

    Raises:
        DataError: The vocabulary loses text, or the given tokenizer cannot be used.
    """
    config = task.config
    if config.tokenizer is not None:
        tokenizer = tokenizer_of(Path(config.tokenizer))
        report = check_vocabulary(tokenizer, _documents(task.sources, SAMPLE_CHARACTERS), SAMPLE_OPTIONS)
        require_fit(report, where=config.tokenizer)
        lines = report.lines()
    else:
        tokenizer, report, share = _train(task)
        require_bars(report)
        sample = f", a sample of {share:.2%} by a hash of their text" if share < 1 else ""
        lines = [*report.lines(), f"trained on      {report.trained_documents:,} documents{sample}"]
    with publish_folder(task.folder) as temporary:
        save_huggingface(tokenizer, temporary)
    return sorted(path for path in task.folder.iterdir() if path.is_file()), {"report": lines}


def _train(task: VocabularyTask) -> tuple[Tokenizer, VocabularyReport, float]:
    """Train on the whole sample or, where it has too many words, on a half, a quarter, ...; return the share too."""
    config, share = task.config, task.share
    wanted = VocabularyOptions(pieces=config.pieces, vocab_size=config.vocab_size, uncased=config.uncased)
    while True:
        # A document is not cut: where the half would hold none, memory has to do.
        has_half = next(_documents(task.sources, share=share / 2), None) is not None
        most = TRAINING_WORDS if has_half else float("inf")
        try:
            return *train_vocabulary(_documents(task.sources, share=share), wanted, max_words=most), share
        except TooManyWords:
            share /= 2


def _documents(paths: tuple[Path, ...], most: float = float("inf"), *, share: float = 1.0) -> Iterator[tuple[str, str]]:
    """Yield documents until there are ``most`` characters, from files in random order, so from all over the corpus."""
    characters = 0
    for index in np.argsort(mix(string_key("vocabulary sample"), np.arange(len(paths))), kind="stable").tolist():
        for name, text in _extracted_texts(paths[index], share):
            yield name, text
            characters += len(text)
            if characters > most:
                return


def _extracted_texts(path: Path, share: float) -> Iterator[tuple[str, str]]:
    """Yield (hash, text) of each extracted document of a file that is in the sample."""
    reader = open_mapped(path)
    for whole in map(reader.get_batch, range(reader.num_record_batches)):
        batch = _chosen(whole, share)
        for document_hash, sentences in zip(batch["document_hash"], batch["sentences"], strict=True):
            yield f"{document_hash.as_py():016x}", "\n".join(sentences.as_py())
