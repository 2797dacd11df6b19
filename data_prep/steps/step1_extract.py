"""The first stage: read a chunk, clean its documents, cut them into sentences, write them as Arrow files."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from data_prep.arrow_files import offsets_of, write_batches
from data_prep.clean.cleaner import Cleaner
from data_prep.clean.paragraphs import DuplicateParagraphs
from data_prep.config import CleanConfig
from data_prep.execution.work_units import Counts
from data_prep.extract.chunks import InputChunk
from data_prep.extract.problems import Problems
from data_prep.extract.readers import read_texts
from data_prep.sentences import make_splitter

SCHEMA = pa.schema([("document_hash", pa.uint64()), ("source", pa.uint16()), ("sentences", pa.list_(pa.string()))])
DOCUMENTS_A_BATCH = 4096
PART_CHARACTERS = 16 << 20
"""A file takes about as many, so that a huge compressed input does not become one huge file."""


@dataclass(frozen=True)
class ExtractTask:
    """A chunk, what to do with its text, and where the sentences go."""

    chunk: InputChunk
    number: int
    """Of the chunk, over the whole build."""
    language: str
    clean: CleanConfig
    is_strict: bool
    """Whether a document that cannot be read ends the build."""
    path: Path
    """Without suffix: parts are named ``PATH-000.arrow`` and so on."""
    duplicates: Path | None = None
    """Folder of the paragraphs that occur in several chunks."""


@dataclass
class _Part:
    """Documents for one file."""

    hashes: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    texts: list[bytes] = field(default_factory=list)
    """Of each document, the sentences end to end."""
    lengths: list[int] = field(default_factory=list)
    """Bytes of each sentence."""
    characters: int = 0

    def add(self, digest: int, sentences: list[str]) -> None:
        """Take a document."""
        text = "".join(sentences)
        self.hashes.append(digest)
        self.texts.append(text.encode())
        self.lengths += map(len, sentences) if text.isascii() else [len(sentence.encode()) for sentence in sentences]
        self.starts.append(len(self.lengths))
        self.characters += len(text)

    def write(self, path: Path, source: int) -> Path:
        """Write the documents."""
        sources = pa.array([source] * len(self.hashes), pa.uint16())
        ends = offsets_of(np.array(self.lengths, np.int64)).astype(np.int32)
        buffers = pa.py_buffer(ends), pa.py_buffer(b"".join(self.texts))
        sentences = pa.StringArray.from_buffers(len(self.lengths), *buffers)
        lists = pa.ListArray.from_arrays(pa.array(self.starts, pa.int32()), sentences)
        batch = pa.record_batch([pa.array(self.hashes, pa.uint64()), sources, lists], schema=SCHEMA)
        batches = [batch.slice(i, DOCUMENTS_A_BATCH) for i in range(0, batch.num_rows, DOCUMENTS_A_BATCH)]
        write_batches(path, SCHEMA, batches, compression="lz4")
        return path


def extract(task: ExtractTask) -> tuple[list[Path], Counts]:
    """Write the documents of a chunk; a document's hash is of its text, wherever it was found."""
    splitter = make_splitter(task.language)
    source = task.chunk.file.source
    numbers = {"documents": 0, "empty_documents": 0, "sentences": 0, "characters": 0}
    paths: list[Path] = []
    part = _Part()
    reader = DocumentReader(task)
    for paragraphs in reader.documents():
        numbers["documents"] += 1
        sentences = splitter.split_paragraphs(paragraphs)
        if not sentences:
            numbers["empty_documents"] += 1
            continue
        part.add(hash_document(paragraphs), sentences)
        if part.characters >= PART_CHARACTERS:
            _add(numbers, part)
            paths.append(part.write(_part_path(task.path, len(paths)), source))
            part = _Part()
    if part.hashes or not paths:
        _add(numbers, part)
        paths.append(part.write(_part_path(task.path, len(paths)), source))
    numbers["documents"] += reader.dropped
    counts: Counts = {**numbers, **reader.report(), "bytes": task.chunk.bytes}
    counts["documents"] = {str(source): numbers["documents"]}
    return paths, counts


def _add(numbers: dict[str, int], part: _Part) -> None:
    numbers["sentences"] += len(part.lengths)
    numbers["characters"] += part.characters


def _part_path(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}-{number:03d}.arrow")


class DocumentReader:
    """The cleaned documents of a chunk, and what was dropped on the way."""

    def __init__(self, task: ExtractTask) -> None:
        self._task = task
        self._problems = Problems(is_strict=task.is_strict)
        known = None
        if task.duplicates is not None:
            known = DuplicateParagraphs(task.duplicates, task.number, task.clean.min_paragraph_characters)
        self._cleaner = Cleaner(task.clean, known)
        self.dropped = 0
        """Documents that a rule dropped."""

    def documents(self) -> Iterator[list[str]]:
        """Yield documents as paragraphs; one without any is an empty list."""
        path, unit = (
            self._task.chunk.file.path,
            "row" if self._task.chunk.file.format in ("parquet", "arrow") else "byte",
        )
        for place, text in read_texts(self._task.chunk, self._problems):
            paragraphs = self._cleaner.clean(text, f"{path} {unit} {place}")
            if paragraphs is None:
                self.dropped += 1
            else:
                yield paragraphs

    def report(self) -> dict[str, Any]:
        """Return counts of problems and rules, and examples under names that no other chunk uses."""
        examples = {**self._problems.examples, **self._cleaner.examples}
        named = {
            rule: {f"{self._task.number:06d}-{index}": text for index, text in enumerate(texts)}
            for rule, texts in examples.items()
        }
        return {"problems": self._problems.counts, "rules": self._cleaner.counts, "examples": named}


def hash_document(paragraphs: list[str]) -> int:
    """Return 64 bits of the BLAKE2b hash of a document's text, whatever splits it into sentences."""
    return int.from_bytes(hashlib.blake2b("\n".join(paragraphs).encode(), digest_size=8).digest(), "little")
