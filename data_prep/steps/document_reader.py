"""Reads the documents of a chunk: its format, its language, and the cleaning rules."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data_prep.clean.cleaner import Cleaner
from data_prep.clean.grouped_hashes import read_rows, write_rows
from data_prep.clean.known_documents import KnownDocuments
from data_prep.clean.near_duplicates import DocumentFates
from data_prep.clean.paragraph_copies import ParagraphOwners
from data_prep.config.build import BuildConfig
from data_prep.execution.records import Counts, Problems
from data_prep.extract.columns import column_documents
from data_prep.extract.opening import InputChunk, InputFile
from data_prep.extract.sentences import split_sentences, splitter_code
from data_prep.extract.text import Document, book_documents, jsonl_documents, text_documents
from data_prep.extract.wikipedia import wikipedia_documents
from data_prep.identification.identifier import keeps_language, language_of_source
from megabert.foundation.errors import without_secrets

READERS: dict[str, Callable[[InputChunk, Problems], Iterator[Document]]] = {
    "text": text_documents,
    "book": book_documents,
    "jsonl": jsonl_documents,
    "parquet": column_documents,
    "arrow": column_documents,
    "wikipedia": wikipedia_documents,
}
"""Readers of the documents of a chunk, by the format of its file."""
VERDICTS = "{:06d}-verdicts.npy"
"""Name of the file of verdicts that the first reading of a chunk may write."""


@dataclass(frozen=True)
class ExtractTask:
    """A chunk, what to do with its text, and where the sentences go."""

    chunk: InputChunk
    number: int
    """Number of the chunk over the whole build."""
    config: BuildConfig
    path: Path
    """Output without suffix: parts are named ``PATH-000.arrow`` and so on."""
    paragraph_owners: Path | None = None
    """File of the paragraphs that documents of this chunk, and of some others, lose to another document."""
    paragraph_hashes: Path | None = None
    """File of the hashes of this chunk's paragraphs, of which near copies of documents are not taken out yet."""
    verdicts: Path | None = None
    """File of the first reading's verdicts on the documents of this chunk."""
    near_fates: Path | None = None
    """File of the documents of this chunk, and of some others, that are in clusters of near duplicates."""
    model_sha256: str = ""
    """Hash of the model that identifies languages; "" if there is none."""
    tokenizer: Path | None = None
    """Folder of the vocabulary, if the chunk holds ids."""

    @property
    def origin(self) -> str:
        """Name of the input, for an error."""
        return f"{without_secrets(self.chunk.file.path)} (part {self.chunk.start} to {self.chunk.end})"


class DocumentReader:
    """Reads and cleans the documents of a chunk, and counts its losses."""

    def __init__(self, task: ExtractTask) -> None:
        self._task = task
        self._problems = Problems(is_strict=task.config.max_bad_share == 0)
        rules, shortest = task.config.clean, task.config.clean.min_paragraph_characters
        fates, owners, verdicts = task.near_fates, task.paragraph_owners, task.verdicts
        languages = task.config, task.chunk.file.source, task.model_sha256
        self._cleaner = Cleaner(
            rules,
            self._problems,
            keeps_language=keeps_language(*languages) if "language" in rules.rules and verdicts is None else None,
            is_known=KnownDocuments(task.config).has if task.config.exclude else None,
            verdicts=map(int, read_rows(verdicts, 1)[0]) if verdicts else None,
            cluster_size=DocumentFates(fates, task.number).cluster_size if fates else None,
            kept_paragraphs=ParagraphOwners(owners, task.number, shortest).kept if owners else None,
        )
        self._language_of = language_of_source(*languages)
        self.dropped = 0
        """Documents that were dropped as a whole, by a cleaning rule or as excessive."""
        self.languages = Counter[str]()
        """Documents with a sentence, by their language."""

    def documents(self) -> Iterator[list[str]]:
        """Yield documents as lists of paragraphs; one without text is an empty list."""
        file = self._task.chunk.file
        for position, text in READERS[file.format](self._task.chunk, self._problems):
            paragraphs = self._cleaner.clean(text, _Origin(file, position))
            if paragraphs is None:
                self.dropped += 1
            else:
                yield paragraphs
        file.require_unchanged()

    def write_verdicts(self, path: Path) -> Path:
        """Write which rules dropped the documents as a whole next to a path, for `ExtractTask.verdicts`."""
        verdicts = path.with_name(VERDICTS.format(self._task.number))
        return write_rows(verdicts, np.array([list(self._cleaner.verdicts)], np.uint64))

    def sentences(self, paragraphs: list[str], content: bytes | None = None) -> list[str]:
        """Return the sentences of a document, which sentencex finds by the rules of its language."""
        language = self._language_of(paragraphs)
        sentences = split_sentences(paragraphs, splitter_code(language), content)
        if sentences:
            self.languages[language] += 1
        return sentences

    def report(self) -> dict[str, Any]:
        """Return counts of problems and rules, and examples under names that no other chunk uses."""
        rules = {rule: dict(amounts) for rule, amounts in self._cleaner.counts.items()}
        return {**problem_counts(self._problems, self._task.number), "rules": rules}


def problem_counts(problems: Problems, chunk: int) -> Counts:
    """Return counts of problems, and examples under names that no other chunk uses."""
    examples = {
        rule: {f"{chunk:06d}-{index}": text for index, text in enumerate(texts)}
        for rule, texts in problems.examples.items()
    }
    lost = {"lost_bytes": problems.lost_bytes} if problems.lost_bytes else {}
    return {"problems": dict(problems.counts), "examples": examples, **lost}


class _Origin(NamedTuple):
    """File and position of a document, which become text only for an example."""

    file: InputFile
    position: object

    def __str__(self) -> str:
        counted = "row" if self.file.format in ("parquet", "arrow") else "byte"
        return f"{self.file.path} {counted} {self.position}"
