"""The words that a vocabulary is trained on, counted by all workers and added up by one process in bounded memory.

A worker counts the words of the sample's documents in some files. Should all of them together be too many to be held,
half of the documents will do, or half of these. So each word is counted by *level*: a document of level 2 is in the
whole sample, in the half of it and in the quarter. The lowest levels are left out of the sum until the rest fits.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from data_prep.documents.arrow_files import checked_batches, checked_table, write_batches
from data_prep.documents.document_set import EXTRACTED
from data_prep.execution.records import Counts
from data_prep.vocabulary.quality import HeldOut
from data_prep.vocabulary.training import VocabularyOptions, count_characters, spans_of
from megabert.foundation.randomness.keyed import mix, string_key, uniform
from megabert.tokens.tokenization import CountedWords, add_up_counts

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


@dataclass(frozen=True)
class CountTask:
    """Some files of extracted documents, and where the counts of their words go."""

    sources: tuple[Path, ...]
    share: float
    """Share of the documents to count."""
    options: VocabularyOptions
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
                spans.setdefault(level, Counter()).update(spans_of(text, options))
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
    """Return how often the sample can be halved with each document in it; -1 for one that is not in it at all."""
    draws = uniform(mix(hashes, string_key("vocabulary sample")))
    return np.count_nonzero(draws[:, None] < share * 0.5 ** np.arange(LEVELS), axis=1) - 1


def merge_words(paths: Sequence[Path], most: float) -> tuple[int, CountedWords]:
    """Add up what units counted, from the lowest level on with which there are at most so many different words.

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


def held_out_of(paths: Sequence[Path], level: int, words: CountedWords, options: VocabularyOptions) -> HeldOut:
    """Return the documents to measure, and the counts of all others, of a level and above."""
    held_out = HeldOut(share=options.held_out_share, seed=options.seed, all_characters=count_characters(words))
    # In random order, for those to measure are the first ones, and are to be from all over the corpus.
    for index in np.argsort(mix(string_key("vocabulary sample"), np.arange(len(paths))), kind="stable").tolist():
        rows = checked_table(held_out_path(paths[index]), HELD_OUT)
        for row in rows.filter(pc.greater_equal(rows["level"], level)).to_pylist():
            held_out.endless_words += row["endless_words"]
            held_out.trained += row["trained"]
            for text in row["texts"]:
                held_out.keep(text)
            if row["trained"]:
                held_out.fallback = min(held_out.fallback or (1.0, ""), (row["draw"], row["next_text"]))
    return held_out
