"""Step 2: the tokenizer of the build, trained on the extracted text or copied from a given folder.

All workers count words, each in some of the files (`data_prep.vocabulary.words`); one process adds the counts up,
trains on them, and measures the tokenizer on documents that were not counted.

Of a large corpus a sample is trained on. A hash of its text decides whether a document is in the sample, so neither the
order of the input nor the way it is cut into files and chunks changes a piece. If the sample has too many different
words for the memory of a worker, half of it is taken, and half of that.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from data_prep.config.build import BuildConfig
from data_prep.documents.document_set import tokenizer_of
from data_prep.execution.progress import BYTES, say_stage
from data_prep.execution.records import Counts
from data_prep.execution.work_units import RunningBuild, Unit, release_memory
from data_prep.vocabulary.quality import VocabularyReport, require_bars, require_fit
from data_prep.vocabulary.symbols import tokenizer_of_ids, vocabulary_lines
from data_prep.vocabulary.training import VocabularyOptions, check_vocabulary, train_on_spans, train_vocabulary
from data_prep.vocabulary.words import CountTask, count_words, extracted_texts, held_out_of, merge_words
from megabert.foundation.randomness.keyed import mix, string_key
from megabert.foundation.whole_folders import publish_folder
from megabert.tokens.tokenization import Tokenizer, save_huggingface

TRAINING_CHARACTERS = 200_000_000
"""Text that a vocabulary is trained on at most, about: the count of different words takes memory."""
TRAINING_WORDS = 750_000
"""Different words that are trained on at most; the trainer holds all of them, about 300 bytes each."""
SHOWN_WORDS = 20_000
"""With more different words, training takes so long that its parts are announced."""
COUNT_UNITS = 4096
"""Units that count words, at most: one process reads all of their files."""
SAMPLE_CHARACTERS = 500_000
SAMPLE_OPTIONS = VocabularyOptions(held_out_share=0.5)
"""A given tokenizer is measured on half of a sample of documents: it was trained on none of them."""
FEW_FILES = 256


@dataclass(frozen=True)
class VocabularyTask:
    """Where the text is, or whose tokenizer to take."""

    sources: tuple[Path, ...]
    """Files of extracted documents: all where a given tokenizer is measured, else the first few."""
    config: BuildConfig
    """Names the folder of a given tokenizer, or says what vocabulary to train."""
    folder: Path
    """Output."""
    words: tuple[Path, ...] = ()
    """Paths of the counts of words, without suffix."""
    share: float = 1.0
    """Share of all documents that were counted."""


def train_or_copy_vocabulary(build: RunningBuild, texts: Sequence[Path], characters: int) -> list[str]:
    """Make the tokenizer of the build; return the lines of the report on how it fits the text.

    Args:
        build: The build.
        texts: Files of extracted documents.
        characters: Length of all of these.
    """
    task = VocabularyTask(tuple(texts), build.config, build.path("tokenizer"))
    if build.config.tokenizer is None and not build.config.holds_ids:
        share = min(1.0, TRAINING_CHARACTERS / max(characters, 1))
        words = _count_words(build, texts, share)
        task = VocabularyTask(tuple(texts[:FEW_FILES]), build.config, build.path("tokenizer"), words, share)
    return build.run("vocabulary", [vocabulary_unit(build, task)]).counts["report"]


def counting_units(texts: int) -> int:
    """Return the number of units that count the words of ``texts`` files, shared evenly among at most COUNT_UNITS."""
    return -(-texts // -(-texts // COUNT_UNITS))


def _count_words(build: RunningBuild, texts: Sequence[Path], share: float) -> tuple[Path, ...]:
    """Have the words of the sample counted; return the paths of the counts, without suffix."""
    files, options = -(-len(texts) // COUNT_UNITS), vocabulary_options(build.config)
    paths = tuple(build.path("work", "words", f"{number:05d}") for number in range(counting_units(len(texts))))

    def task(number: int) -> CountTask:
        return CountTask(tuple(texts[number * files : (number + 1) * files]), share, options, paths[number])

    build.run("vocabulary: count words", build.units("words", count_words, len(paths), task), BYTES)
    return paths


def vocabulary_options(config: BuildConfig) -> VocabularyOptions:
    """Return what vocabulary a configuration asks for."""
    return VocabularyOptions(
        pieces=config.pieces,
        vocab_size=config.vocab_size,
        spare_pieces=config.spare_pieces,
        uncased=config.uncased,
    )


def vocabulary_unit(build: RunningBuild, task: VocabularyTask | None = None) -> Unit:
    """Return the last unit of this step; a finished one can be recognized without its task."""
    return build.unit("tokenizer", "tokenizer", make_tokenizer, task)


def make_tokenizer(task: VocabularyTask) -> tuple[list[Path], Counts]:
    """Write the tokenizer in Hugging Face form.

    Raises:
        DataError: The vocabulary loses text, or the given tokenizer cannot be used.
    """
    config = task.config
    if config.holds_ids:
        tokenizer = tokenizer_of_ids(config)
        lines = vocabulary_lines(config, tokenizer)
    elif config.tokenizer is not None:
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
    """Train on the whole sample or, if it has too many words, on a half, a quarter, ...; return the share too."""
    options = vocabulary_options(task.config)
    level, words = merge_words(task.words, TRAINING_WORDS)
    share = task.share / 2**level
    notify = partial(_say, len(words) > SHOWN_WORDS)
    notify(f"{len(words):,} different words are counted")
    held_out = held_out_of(task.words, level, words, options)
    # The memory of the sums is free now, and the trainer allocates elsewhere.
    release_memory()
    if not len(words):  # all of a corpus of a few documents are held out: better trained on than refused
        return *train_vocabulary(_documents(task.sources), options), share
    return *train_on_spans(words, held_out, options, notify), share


def _say(is_shown: bool, text: str) -> None:
    if is_shown:
        say_stage(f"vocabulary: {text}")


def _documents(paths: tuple[Path, ...], most: float = float("inf")) -> Iterator[tuple[str, str]]:
    """Yield documents until there are ``most`` characters, from files in random order, so from all over the corpus."""
    characters = 0
    for index in np.argsort(mix(string_key("vocabulary sample"), np.arange(len(paths))), kind="stable").tolist():
        for name, text, _ in extracted_texts(paths[index], 1.0):
            yield name, text
            characters += len(text)
            if characters > most:
                return
