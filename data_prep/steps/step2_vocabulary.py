"""Step 2: the tokenizer of the build, trained on the extracted text or copied from a given folder.

All workers count words, each in some of the files; one process adds the counts up in bounded memory, trains on them,
and measures the tokenizer on documents that were not counted.

Of a large corpus a sample is trained on. A hash of its text decides whether a document is in the sample, so neither the
order of the input nor the way it is cut into files and chunks changes a piece. If the sample has too many different
words for the memory of a worker, half of it is taken, and half of that. So each word is counted by *level*: a document
of level 2 is in the whole sample, in the half of it and in the quarter. The lowest levels are left out of the sum until
the rest fits.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from data_prep.config.build import BuildConfig
from data_prep.documents.arrow_files import checked_batches, checked_table, write_batches
from data_prep.documents.document_set import EXTRACTED, tokenizer_of
from data_prep.execution.progress import BYTES, say_stage
from data_prep.execution.records import Counts
from data_prep.execution.work_units import RunningBuild, Unit, release_memory
from data_prep.vocabulary import training
from data_prep.vocabulary.quality import HeldOut, VocabularyReport, require_bars, require_fit
from data_prep.vocabulary.symbols import tokenizer_of_ids, vocabulary_lines
from megabert.foundation.randomness.keyed import mix, string_key, uniform
from megabert.foundation.whole_folders import publish_folder
from megabert.tokens.tokenization import Tokenizer, save_huggingface
from megabert.tokens.tokenization.training import CountedWords, add_up_counts

TRAINING_CHARACTERS = 200_000_000
"""Text that a vocabulary is trained on at most, about: the count of different words takes memory."""
TRAINING_WORDS = 750_000
"""Different words that are trained on at most; the trainer holds all of them, about 300 bytes each."""
SHOWN_WORDS = 20_000
"""With more different words, training takes so long that its parts are announced."""
COUNT_UNITS = 4096
"""Units that count words, at most: one process reads all of their files."""
LEVELS = 32
WORDS = pa.schema([("span", pa.string()), ("level", pa.uint8()), ("count", pa.int64())])
HELD_OUT = pa.schema(
    [
        ("level", pa.uint8()),
        ("texts", pa.list_(pa.string())),
        ("trained", pa.int64()),
        ("endless_words", pa.int64()),
        ("draw", pa.float64()),
        ("next_text", pa.string()),
    ]
)
"""One row per level: the documents held out, the number of the others, and which of these is held out next."""
ROWS_PER_MERGE = 1 << 18
"""Counts that are added up at a time."""
SAMPLE_CHARACTERS = 500_000
SAMPLE_OPTIONS = training.VocabularyOptions(held_out_share=0.5)
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


def train_or_take_vocabulary(build: RunningBuild, texts: Sequence[Path], characters: int) -> list[str]:
    """Make the tokenizer of the build; return the lines of the report on how it fits the text.

    Args:
        build: The build.
        texts: Files of extracted documents.
        characters: Length of all of these.
    """
    task = VocabularyTask(tuple(texts), build.config, build.path("tokenizer"))
    if build.config.tokenizer is None and not build.config.holds_ids:
        share = min(1.0, TRAINING_CHARACTERS / max(characters, 1))
        words = _run_counting(build, texts, share)
        task = VocabularyTask(tuple(texts[:FEW_FILES]), build.config, build.path("tokenizer"), words, share)
    return build.run("vocabulary", [vocabulary_unit(build, task)]).counts["report"]


def counting_units(texts: int) -> int:
    """Return the number of units that count the words of ``texts`` files, shared evenly among at most COUNT_UNITS."""
    return -(-texts // -(-texts // COUNT_UNITS))


def _run_counting(build: RunningBuild, texts: Sequence[Path], share: float) -> tuple[Path, ...]:
    """Have the words of the sample counted; return the paths of the counts, without suffix."""
    files, options = -(-len(texts) // COUNT_UNITS), vocabulary_options(build.config)
    paths = tuple(build.path("work", "words", f"{number:05d}") for number in range(counting_units(len(texts))))

    def task(number: int) -> CountTask:
        return CountTask(tuple(texts[number * files : (number + 1) * files]), share, options, paths[number])

    build.run("vocabulary: count words", build.units("words", count_words, len(paths), task), BYTES)
    return paths


def vocabulary_options(config: BuildConfig) -> training.VocabularyOptions:
    """Return what vocabulary a configuration asks for."""
    return training.VocabularyOptions(
        pieces=config.pieces, vocab_size=config.vocab_size, spare_pieces=config.spare_pieces, uncased=config.uncased
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
        report = training.check_vocabulary(tokenizer, _documents(task.sources, SAMPLE_CHARACTERS), SAMPLE_OPTIONS)
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
        return *training.train_vocabulary(_documents(task.sources), options), share
    return *training.train_on_spans(words, held_out, options, notify), share


def _say(is_shown: bool, text: str) -> None:
    if is_shown:
        say_stage(f"vocabulary: {text}")


def _in_random_order(paths: Sequence[Path]) -> list[Path]:
    """Return files in an order in which the first ones are from all over the corpus."""
    order = np.argsort(mix(string_key("vocabulary sample"), np.arange(len(paths))), kind="stable")
    return [paths[index] for index in order.tolist()]


def _documents(paths: tuple[Path, ...], most: float = float("inf")) -> Iterator[tuple[str, str]]:
    """Yield documents until there are ``most`` characters, from files in random order, so from all over the corpus."""
    characters = 0
    for path in _in_random_order(paths):
        for name, text, _ in extracted_texts(path, 1.0):
            yield name, text
            characters += len(text)
            if characters > most:
                return


@dataclass(frozen=True)
class CountTask:
    """Some files of extracted documents, and where the counts of their words go."""

    sources: tuple[Path, ...]
    share: float
    """Share of the documents to count."""
    options: training.VocabularyOptions
    path: Path
    """Path of the outputs, without suffix."""


def words_path(path: Path) -> Path:
    """Return the file of counts."""
    return path.with_suffix(".words.arrow")


def held_out_path(path: Path) -> Path:
    """Return the file of documents that are measured and not counted."""
    return path.with_suffix(".held-out.arrow")


def count_words(task: CountTask) -> tuple[list[Path], Counts]:
    """Write how often each word occurs, by level, and the documents that are held out."""
    spans: dict[int, Counter[str]] = {}
    held_out: dict[int, HeldOut] = {}
    options = task.options
    for source in task.sources:
        for name, text, level in extracted_texts(source, task.share):
            if level not in held_out:
                held_out[level] = HeldOut(share=options.held_out_share, seed=options.seed, most_characters=float("inf"))
            if held_out[level].is_trained(name, text):
                spans.setdefault(level, Counter()).update(training.spans_of(text, options))
    batches = (
        pa.record_batch([[*counts], [level] * len(counts), [*counts.values()]], schema=WORDS)
        for level, counts in spans.items()
    )
    write_batches(words_path(task.path), WORDS, batches)
    rows = [
        (level, own.texts, own.trained, own.endless_words, *(own.fallback or (1.0, "")))
        for level, own in held_out.items()
    ]
    named = [dict(zip(HELD_OUT.names, row, strict=True)) for row in rows]
    write_batches(held_out_path(task.path), HELD_OUT, [pa.RecordBatch.from_pylist(named, schema=HELD_OUT)])
    size = sum(source.stat().st_size for source in task.sources)
    return [words_path(task.path), held_out_path(task.path)], {"bytes": size}


def extracted_texts(path: Path, share: float) -> Iterator[tuple[str, str, int]]:
    """Yield (hash, text, level) of each extracted document of a file that is in the sample."""
    for batch in checked_batches(path, EXTRACTED):
        levels = _levels(np.asarray(batch["document_hash"]), share)
        rows = np.flatnonzero(levels >= 0)
        chosen = batch.take(pa.array(rows))
        columns = chosen["document_hash"], pc.binary_join(chosen["sentences"], "\n"), levels[rows].tolist()
        for document_hash, text, level in zip(*columns, strict=True):
            yield f"{document_hash.as_py():016x}", text.as_py(), level


def _levels(hashes: NDArray[np.uint64], share: float) -> NDArray[np.int64]:
    """Return how often the sample can be halved with each document in it; -1 for a document outside of it."""
    draws = uniform(mix(hashes, string_key("vocabulary sample")))
    return np.count_nonzero(draws[:, None] < share * 0.5 ** np.arange(LEVELS), axis=1) - 1


def merge_words(paths: Sequence[Path], most: float) -> tuple[int, CountedWords]:
    """Add up what units counted, from the lowest level whose different words fit the limit.

    Returns:
        The level; where even the highest one has more words, that one. And the words.
    """
    level, waiting, merged = 0, 0, WORDS.empty_table()
    parts: list[pa.Table] = []
    for number, path in enumerate(paths):
        part = checked_table(words_path(path), WORDS)
        parts.append(part.filter(pc.greater_equal(part["level"], level)))
        waiting += parts[-1].num_rows
        if waiting < ROWS_PER_MERGE and number + 1 < len(paths):
            continue
        merged = add_up_counts(pa.concat_tables([merged, *parts]), ["span", "level"])
        parts, waiting = [], 0
        while merged.num_rows > most and level < pc.max(merged["level"]).as_py():
            if pc.count_distinct(merged["span"]).as_py() <= most:
                break
            level += 1
            merged = merged.filter(pc.greater_equal(merged["level"], level))
    return level, CountedWords(add_up_counts(merged, ["span"]))


def held_out_of(paths: Sequence[Path], level: int, words: CountedWords, options: training.VocabularyOptions) -> HeldOut:
    """Return the documents to measure, and the counts of all others, of a level and above."""
    held_out = HeldOut(share=options.held_out_share, seed=options.seed, all_characters=training.count_characters(words))
    for path in _in_random_order(paths):  # those to measure are the first ones
        rows = checked_table(held_out_path(path), HELD_OUT)
        for row in rows.filter(pc.greater_equal(rows["level"], level)).to_pylist():
            held_out.endless_words += row["endless_words"]
            held_out.trained += row["trained"]
            for text in row["texts"]:
                held_out.keep(text)
            if row["trained"]:
                held_out.fallback = min(held_out.fallback or (1.0, ""), (row["draw"], row["next_text"]))
    return held_out
