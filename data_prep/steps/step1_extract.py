"""Step 1: read each chunk of the input, clean its documents, cut them into sentences, and write them as Arrow files.

With the cleaning rules ``near_duplicates`` and ``duplicate_paragraphs`` the chunks are read once more for each: before
the text is written, a reading finds the documents that the rules before keep, and what several of them have.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from data_prep.clean.cleaner import Cleaner
from data_prep.clean.near_copies import find_near_copies
from data_prep.clean.near_duplicates import DocumentFates, Signature, write_keys
from data_prep.clean.paragraph_copies import find_paragraph_copies
from data_prep.clean.paragraphs import ParagraphOwners, ParagraphPlan, write_hashes
from data_prep.config.build import BuildConfig
from data_prep.config.languages import splitter_code
from data_prep.documents.arrow_files import offsets_of, write_batches
from data_prep.documents.document_set import EXTRACTED, hash_text
from data_prep.execution.problems import Problems
from data_prep.execution.progress import BYTES
from data_prep.execution.records import Counts, Outcome
from data_prep.execution.work_units import Build, LazyList, Unit
from data_prep.extract.columns import column_documents
from data_prep.extract.inputs import plan_chunks
from data_prep.extract.opening import InputChunk, InputFile
from data_prep.extract.sentences import split_sentences
from data_prep.extract.text import Document, book_documents, jsonl_documents, text_documents
from data_prep.extract.wikipedia import wikipedia_documents
from data_prep.identification.identifier import keeps_language, language_of_source

READERS: dict[str, Callable[[InputChunk, Problems], Iterator[Document]]] = {
    "text": text_documents,
    "book": book_documents,
    "jsonl": jsonl_documents,
    "parquet": column_documents,
    "arrow": column_documents,
    "wikipedia": wikipedia_documents,
}
"""Readers of the documents of a chunk, by the format of its file."""
DOCUMENTS_PER_BATCH = 4096
PART_CHARACTERS = 16 << 20
"""Text that a file holds at most, about, so that a huge compressed input does not become one huge file."""


@dataclass(frozen=True)
class ExtractTask:
    """A chunk, what to do with its text, and where the sentences go."""

    chunk: InputChunk
    number: int
    """Number of the chunk over the whole build."""
    config: BuildConfig
    path: Path
    """Output without suffix: parts are named ``PATH-000.arrow`` and so on."""
    copies: Path | None = None
    """File of the paragraphs that documents of this chunk, and of some others, lose to another document."""
    fates: Path | None = None
    """File of the documents of this chunk, and of some others, that are in clusters of near duplicates."""
    model_sha256: str = ""
    """Hash of the model that identifies languages; "" if there is none."""

    @property
    def origin(self) -> str:
        """Name of the input, for an error."""
        return f"{self.chunk.file.path} (part {self.chunk.start} to {self.chunk.end})"


def extract_documents(build: Build, files: list[InputFile]) -> tuple[Sequence[Path], Counts]:
    """Extract the documents of all input files.

    Returns:
        The files of extracted documents, in the order of the input, and the counts.
    """
    chunks, rules = plan_chunks(files, build.config.chunk_bytes), build.config.clean.rules
    found: dict[str, Callable[[int], Path]] = {}  # by the field of a task: its file for each chunk
    clusters: Counts = {}
    if "near_duplicates" in rules:
        units = _units(build, "near", write_document_keys, chunks)
        plan = ParagraphPlan.of(len(chunks), build.run("near duplicates: keys", units, BYTES).counts["keys"])
        found["fates"], clusters["near_duplicates"] = find_near_copies(build, plan)
    if "duplicate_paragraphs" in rules:
        counts = build.run("paragraphs", _units(build, "paragraphs", hash_paragraphs, chunks, found), BYTES).counts
        found["copies"] = find_paragraph_copies(build, ParagraphPlan.of(len(chunks), counts["paragraphs"]))
    results = build.run("extract", _units(build, "extract", extract, chunks, found), BYTES, keep=count_files)
    first_parts = offsets_of(np.array(results.kept, np.int64))

    def text(index: int) -> Path:
        number = int(np.searchsorted(first_parts, index, side="right")) - 1
        return part_path(_output(build, "extract", number), index - int(first_parts[number]))

    return LazyList(int(first_parts[-1]), text), results.counts | clusters


def count_files(outcome: Outcome) -> int:
    """Return the number of files of a unit."""
    return len(outcome.files)


def _units(
    build: Build,
    step: str,
    function: Callable[[ExtractTask], tuple[list[Path], Counts]],
    chunks: list[InputChunk],
    found: Mapping[str, Callable[[int], Path]] = MappingProxyType({}),
) -> Sequence[Unit]:
    """Return a unit for each chunk."""
    model_sha256 = build.state.sha256_of(build.config.language_model)

    def task(number: int) -> ExtractTask:
        own = {field: file(number) for field, file in found.items()}
        path = _output(build, step, number)
        return ExtractTask(chunks[number], number, build.config, path, **own, model_sha256=model_sha256)

    return build.units(step, function, len(chunks), task)


def _output(build: Build, step: str, number: int) -> Path:
    """Return the path of a chunk's files, without suffix."""
    return build.path("work", step, f"{number:06d}")


def part_path(output: Path, part: int) -> Path:
    """Return the path of one of the files of a chunk."""
    return output.with_name(f"{output.name}-{part:03d}.arrow")


def write_document_keys(task: ExtractTask) -> tuple[list[Path], Counts]:
    """Write the keys of a chunk's documents, as they are before the rule on near duplicates."""
    signature, path = Signature.of(task.config.clean), task.path.with_suffix(".npy")
    paths, counts = write_keys(DocumentReader(task).documents(), signature, path)
    return paths, {**counts, "bytes": task.chunk.bytes}


def hash_paragraphs(task: ExtractTask) -> tuple[list[Path], Counts]:
    """Write the hashes of the paragraphs of a chunk's documents, as they are before the rule on duplicates."""
    least, path = task.config.clean.min_paragraph_characters, task.path.with_suffix(".npy")
    paths, counts = write_hashes(DocumentReader(task).documents(), least, path)
    return paths, {**counts, "bytes": task.chunk.bytes}


def extract(task: ExtractTask) -> tuple[list[Path], Counts]:
    """Write the documents of a chunk as sentences."""
    source = task.chunk.file.source
    counts: Counts = {"documents": 0, "empty_documents": 0, "written": 0, "sentences": 0, "characters": 0}
    paths: list[Path] = []
    part = _Part()

    def write_part() -> None:
        counts["written"] += len(part.hashes)
        counts["sentences"] += len(part.lengths)
        counts["characters"] += part.characters
        paths.append(part.write(part_path(task.path, len(paths)), source))

    reader = DocumentReader(task)
    for paragraphs in reader.documents():
        counts["documents"] += 1
        sentences = reader.sentences(paragraphs)
        # A document may lose all of its text to the cleaning rules; it is counted and not written.
        if not sentences:
            counts["empty_documents"] += 1
            continue
        # The hash is taken of the text before it is cut: another splitter leaves a document in its split and bucket.
        part.add(hash_text("\n".join(paragraphs)), sentences)
        if part.characters >= PART_CHARACTERS:
            write_part()
            part = _Part()
    # The last documents; a chunk without any gives an empty file.
    if part.hashes or not paths:
        write_part()
    counts |= {"documents": {str(source): counts["documents"] + reader.dropped}, "bytes": task.chunk.bytes}
    if task.config.has_many_languages:
        counts["languages"] = {str(source): dict(reader.languages)}
    return paths, counts | reader.report()


class DocumentReader:
    """Reads and cleans the documents of a chunk, and counts its losses."""

    def __init__(self, task: ExtractTask) -> None:
        self._task = task
        self._problems = Problems(is_strict=task.config.max_bad_share == 0)
        rules = task.config.clean
        kept = copies = None
        if task.fates is not None:
            copies = DocumentFates(task.fates, task.number).copies
        if task.copies is not None:
            kept = ParagraphOwners(task.copies, task.number, rules.min_paragraph_characters).kept
        languages = task.config, task.chunk.file.source, task.model_sha256
        is_kept = keeps_language(*languages) if "language" in rules.rules else None
        self._cleaner = Cleaner(rules, self._problems, kept, copies, is_kept)
        self._language_of = language_of_source(*languages)
        self.dropped = 0
        """Documents that a cleaning rule dropped."""
        self.languages = Counter[str]()
        """Documents with a sentence, by their language."""

    def documents(self) -> Iterator[list[str]]:
        """Yield documents as lists of paragraphs; one without text is an empty list."""
        file = self._task.chunk.file
        counted = "row" if file.format in ("parquet", "arrow") else "byte"
        for position, text in READERS[file.format](self._task.chunk, self._problems):
            paragraphs = self._cleaner.clean(text, f"{file.path} {counted} {position}")
            if paragraphs is None:
                self.dropped += 1
            else:
                yield paragraphs
        file.require_unchanged()

    def sentences(self, paragraphs: list[str]) -> list[str]:
        """Return the sentences of a document, which sentencex finds by the rules of its language."""
        language = self._language_of(paragraphs)
        sentences = split_sentences(paragraphs, splitter_code(language))
        if sentences:
            self.languages[language] += 1
        return sentences

    def report(self) -> dict[str, Any]:
        """Return counts of problems and rules, and examples under names that no other chunk uses."""
        examples = numbered_examples(self._problems, self._task.number)
        rules = {rule: dict(amounts) for rule, amounts in self._cleaner.counts.items()}
        lost = {"lost_bytes": self._problems.lost_bytes} if self._problems.lost_bytes else {}
        return {"problems": dict(self._problems.counts), "rules": rules, "examples": examples, **lost}


def numbered_examples(problems: Problems, chunk: int) -> dict[str, dict[str, str]]:
    """Return the examples of problems under names that no other chunk uses."""
    return {
        rule: {f"{chunk:06d}-{index}": text for index, text in enumerate(texts)}
        for rule, texts in problems.examples.items()
    }


@dataclass
class _Part:
    """Documents for one file, collected as flat lists: pyarrow is slow with lists of lists of Python strings."""

    hashes: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    """First sentence of each document, and the end of the last."""
    texts: list[bytes] = field(default_factory=list)
    """Sentences of each document, end to end, in UTF-8."""
    lengths: list[int] = field(default_factory=list)
    """Bytes of each sentence."""
    characters: int = 0

    def add(self, digest: int, sentences: list[str]) -> None:
        """Append a document."""
        # The document is encoded once. In ASCII, characters are bytes; few sentences have to be encoded again.
        text = "".join(sentences)
        self.hashes.append(digest)
        self.texts.append(text.encode())
        self.lengths += map(len, sentences if text.isascii() else map(str.encode, sentences))
        self.starts.append(len(self.lengths))
        self.characters += len(text)

    def write(self, path: Path, source: int) -> Path:
        """Write the documents."""
        # A list of strings in Arrow is three arrays: the bytes of all sentences, where each sentence ends in them, and
        # where each document begins among the sentences.
        sources = pa.array([source] * len(self.hashes), pa.uint16())
        ends = offsets_of(np.array(self.lengths, np.int64)).astype(np.int32)
        buffers = pa.py_buffer(ends), pa.py_buffer(b"".join(self.texts))
        sentences = pa.StringArray.from_buffers(len(self.lengths), *buffers)
        lists = pa.ListArray.from_arrays(pa.array(self.starts, pa.int32()), sentences)
        batch = pa.record_batch([pa.array(self.hashes, pa.uint64()), sources, lists], schema=EXTRACTED)
        batches = [batch.slice(i, DOCUMENTS_PER_BATCH) for i in range(0, batch.num_rows, DOCUMENTS_PER_BATCH)]
        write_batches(path, EXTRACTED, batches)  # lz4 would take twice as long, to halve files that are soon deleted
        return path
