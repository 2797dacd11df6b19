"""Step 1: read each chunk of the input, clean its documents, cut them into sentences, and write them as Arrow files.

With the cleaning rules ``near_duplicates`` and ``duplicate_paragraphs`` the chunks are read twice. The first reading
finds the documents that the rules before keep, and what several of them have. It records which rule dropped each other
document as a whole, so that the second reading, which writes the text, does not ask these rules again.

In a build from ids there is no text to clean, to cut into sentences or to tokenize: each chunk is read, its ids are
checked and written as tokenized documents (`read_ids`). So the vocabulary (step 2) is there first, and step 3 only
gives the documents their splits. From there on ids and text are one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_prep.clean.grouped_hashes import HashPlan
from data_prep.clean.known_documents import KnownDocuments
from data_prep.clean.near_duplicates import FATES, DocumentFates, Signature, find_near_copies, write_keys
from data_prep.clean.paragraph_copies import COPIES, ParagraphHashes, find_paragraph_copies, write_kept
from data_prep.documents.arrow_files import offsets_of, write_batches
from data_prep.documents.document_set import (
    EXTRACTED,
    TokenizedDocuments,
    bucket_schema,
    hash_bytes,
    hash_text,
    tokenizer_of,
)
from data_prep.execution.progress import BYTES
from data_prep.execution.records import Counts, Outcome, Problems
from data_prep.execution.work_units import LazyList, RunningBuild, Unit
from data_prep.extract.ids import IdChecker, Sides, id_documents
from data_prep.extract.inputs import plan_chunks
from data_prep.extract.opening import InputChunk, InputFile
from data_prep.steps.document_reader import VERDICTS, DocumentReader, ExtractTask, problem_counts
from megabert.tokens.shards.format import token_type

DOCUMENTS_PER_BATCH = 4096
HASHES = "{:06d}-paragraphs.npy"
"""Name of the file of hashes that the first reading of a chunk may write."""
PART_CHARACTERS = 16 << 20
"""Text that a file holds at most, about, so that a huge compressed input does not become one huge file."""
ChunkFiles = tuple[str, str, int]
"""Files about chunks: their folder below ``work``, their name with a place for a number, and the chunks of each."""


def extract_documents(build: RunningBuild, files: list[InputFile]) -> tuple[Sequence[Path], Counts]:
    """Extract the documents of all input files.

    Returns:
        The files of extracted documents, in the order of the input, and the counts.
    """
    chunks, rules = plan_chunks(files, build.config.chunk_bytes), build.config.clean.rules
    earlier: dict[str, ChunkFiles] = {}  # by the field of `ExtractTask` that they are for
    clusters: Counts = {}
    if "near_duplicates" in rules:
        units = _units(build, "near", write_document_keys, chunks, {})
        plan = HashPlan.of(len(chunks), build.run("near duplicates: keys", units, BYTES).counts["keys"])
        clusters["near_duplicates"] = find_near_copies(build, plan)
        earlier["near_fates"] = "near", FATES, plan.chunks_a_group
        earlier |= {"verdicts": ("near", VERDICTS, 1), "paragraph_hashes": ("near", HASHES, 1)}
    if "duplicate_paragraphs" in rules:
        counts = build.run("paragraphs", _units(build, "paragraphs", hash_paragraphs, chunks, earlier), BYTES).counts
        find_paragraph_copies(build, plan := HashPlan.of(len(chunks), counts["paragraphs"]))
        earlier["paragraph_owners"] = "paragraphs", COPIES, plan.chunks_a_group
        earlier.setdefault("verdicts", ("paragraphs", VERDICTS, 1))
    texts, counts = read_chunks(build, "extract", extract, chunks, earlier)
    return texts, counts | clusters


def read_chunks(
    build: RunningBuild,
    step: str,
    function: Callable[[ExtractTask], tuple[list[Path], Counts]],
    chunks: list[InputChunk],
    earlier: Mapping[str, ChunkFiles],
) -> tuple[Sequence[Path], Counts]:
    """Run a unit for each chunk; return all files in the order of the input, and the units' counts.

    Args:
        build: The build.
        step: Name of the step.
        function: Writes the documents of a chunk by `write_parts`.
        chunks: All chunks of the input.
        earlier: Files of earlier units, by the field of a task.
    """
    results = build.run(step, _units(build, step, function, chunks, earlier), BYTES, keep=count_files)
    first_parts = offsets_of(np.array(results.kept, np.int64))

    def part(index: int) -> Path:
        number = int(np.searchsorted(first_parts, index, side="right")) - 1
        return part_path(_output(build, step, number), index - int(first_parts[number]))

    return LazyList(int(first_parts[-1]), part), results.counts


def count_files(outcome: Outcome) -> int:
    """Return the number of files of a unit."""
    return len(outcome.files)


def _units(
    build: RunningBuild,
    step: str,
    function: Callable[[ExtractTask], tuple[list[Path], Counts]],
    chunks: list[InputChunk],
    earlier: Mapping[str, ChunkFiles],
) -> Sequence[Unit]:
    """Return a unit for each chunk."""
    work, sha256 = build.path("work"), build.state.sha256_of(build.config.language_model)
    tokenizer = build.path("tokenizer") if build.config.holds_ids else None

    def task(number: int) -> ExtractTask:
        own = {field: work / folder / name.format(number // each) for field, (folder, name, each) in earlier.items()}
        path = _output(build, step, number)
        return ExtractTask(chunks[number], number, build.config, path, **own, model_sha256=sha256, tokenizer=tokenizer)

    return build.units(step, function, len(chunks), task)


def _output(build: RunningBuild, step: str, number: int) -> Path:
    """Return the path of a chunk's files, without suffix."""
    return build.path("work", step, f"{number:06d}")


def part_path(output: Path, part: int) -> Path:
    """Return the path of one of the files of a chunk."""
    return output.with_name(f"{output.name}-{part:03d}.arrow")


def write_document_keys(task: ExtractTask) -> tuple[list[Path], Counts]:
    """Write the keys of a chunk's documents, as they are before the rule on near duplicates, and their verdicts.

    If the rule on paragraphs follows, their hashes are written as well, so that the text is not read again for it.
    """
    rules, reader = task.config.clean, DocumentReader(task)
    documents, path = reader.documents(), task.path.with_suffix(".npy")
    if "duplicate_paragraphs" in rules.rules:
        hashes = ParagraphHashes(rules.min_paragraph_characters, are_all_kept=False)
        paths, counts = write_keys(hashes.of(documents), Signature.of(rules), path)
        paths += hashes.write(path.with_name(HASHES.format(task.number)))[0]
    else:
        paths, counts = write_keys(documents, Signature.of(rules), path)
    return [*paths, reader.write_verdicts(path)], {**counts, "bytes": task.chunk.bytes}


def hash_paragraphs(task: ExtractTask) -> tuple[list[Path], Counts]:
    """Write the hashes of the paragraphs of a chunk's documents, as they are before the rule on duplicates."""
    path, size = task.path.with_suffix(".npy"), {"bytes": task.chunk.bytes}
    if task.near_fates is not None and task.paragraph_hashes is not None:
        dropped = DocumentFates(task.near_fates, task.number).dropped
        paths, counts = write_kept(task.paragraph_hashes, dropped, path)
        return paths, counts | size
    reader, hashes = DocumentReader(task), ParagraphHashes(task.config.clean.min_paragraph_characters)
    for _ in hashes.of(reader.documents()):
        pass
    paths, counts = hashes.write(path)
    return [*paths, reader.write_verdicts(path)], counts | size


def extract(task: ExtractTask) -> tuple[list[Path], Counts]:
    """Write the documents of a chunk as sentences."""
    source, reader = task.chunk.file.source, DocumentReader(task)
    counts: Counts = {"documents": 0, "empty_documents": 0, "written": 0, "sentences": 0, "characters": 0}

    def documents() -> Iterator[tuple[int, list[str]]]:
        for paragraphs in reader.documents():
            counts["documents"] += 1
            # Hashed before it is cut: another splitter leaves a document in its split and bucket.
            text = "\n".join(paragraphs)
            sentences = reader.sentences(paragraphs, text.encode())
            # A document may lose all of its text to the cleaning rules; it is counted and not written.
            if not sentences:
                counts["empty_documents"] += 1
                continue
            counts["written"] += 1
            counts["sentences"] += len(sentences)
            counts["characters"] += sum(map(len, sentences))
            yield hash_text(text), sentences

    paths = write_parts(task.path, documents(), partial(_TextPart, source))
    counts |= {"documents": {str(source): counts["documents"] + reader.dropped}, "bytes": task.chunk.bytes}
    if task.config.has_many_languages:
        counts["languages"] = {str(source): dict(reader.languages)}
    return paths, counts | reader.report()


def write_parts(path: Path, documents: Iterable[tuple[Any, ...]], new_part: Callable[[], Any]) -> list[Path]:
    """Write documents into files of bounded size, and return these.

    Args:
        path: Path of the files without suffix.
        documents: The arguments of ``add`` of a part for each.
        new_part: Makes an empty part, which has ``add``, ``write``, ``is_full`` and ``hashes``.
    """
    paths: list[Path] = []
    part = new_part()
    for document in documents:
        part.add(*document)
        if part.is_full:
            paths.append(part.write(part_path(path, len(paths))))
            part = new_part()
    # The last documents; a chunk without any gives an empty file.
    return paths if paths and not part.hashes else [*paths, part.write(part_path(path, len(paths)))]


@dataclass
class _TextPart:
    """Documents for one file, collected as flat lists: pyarrow is slow with lists of lists of Python strings."""

    source: int
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
        text = "".join(sentences)
        self.hashes.append(digest)
        self.texts.append(text.encode())
        # Beyond ASCII each is encoded: to count the characters of the document's bytes instead would take longer.
        self.lengths += map(len, sentences if text.isascii() else map(str.encode, sentences))
        self.starts.append(len(self.lengths))
        self.characters += len(text)

    @property
    def is_full(self) -> bool:
        """Whether the documents are enough for a file."""
        return self.characters >= PART_CHARACTERS

    def write(self, path: Path) -> Path:
        """Write the documents."""
        # A list of strings in Arrow is three arrays: the bytes of all sentences, where each sentence ends in them, and
        # where each document begins among the sentences.
        sources = pa.array([self.source] * len(self.hashes), pa.uint16())
        ends = offsets_of(np.array(self.lengths, np.int64)).astype(np.int32)
        buffers = pa.py_buffer(ends), pa.py_buffer(b"".join(self.texts))
        sentences = pa.StringArray.from_buffers(len(self.lengths), *buffers)
        lists = pa.ListArray.from_arrays(pa.array(self.starts, pa.int32()), sentences)
        batch = pa.record_batch([pa.array(self.hashes, pa.uint64()), sources, lists], schema=EXTRACTED)
        batches = [batch.slice(i, DOCUMENTS_PER_BATCH) for i in range(0, batch.num_rows, DOCUMENTS_PER_BATCH)]
        write_batches(path, EXTRACTED, batches)  # lz4 would take twice as long, to halve files that are soon deleted
        return path


PART_IDS = 4 << 20
"""Ids that a file holds at most, about."""


def read_ids(build: RunningBuild, files: list[InputFile]) -> tuple[Sequence[Path], Counts]:
    """Read the documents of all input files.

    Returns:
        The files of documents, in the order of the input, and the counts.
    """
    return read_chunks(build, "ids", write_documents, plan_chunks(files, build.config.chunk_bytes), {})


def write_documents(task: ExtractTask) -> tuple[list[Path], Counts]:
    """Write the documents of a chunk; empty ones are counted and left out.

    Raises:
        DataError: The chunk cannot be read, or has a list that is no ids, and the build may not drop documents.
    """
    assert task.tokenizer is not None
    tokenizer, source = tokenizer_of(task.tokenizer), task.chunk.file.source
    problems = Problems(is_strict=task.config.max_bad_share == 0)
    counts: Counts = {"empty_documents": 0, "written": 0, "sentences": 0, "characters": 0, "rules": {}}
    known, dropped = KnownDocuments(task.config), 0

    def documents() -> Iterator[tuple[int, Sides]]:
        nonlocal dropped
        for sides in id_documents(task.chunk, IdChecker(tokenizer), problems):
            # The hash is of the ids and of where B begins.
            digest = hash_bytes(b"".join(ids.astype("<i4").tobytes() for ids in sides) + b"%d" % len(sides[0]))
            if not any(map(len, sides)):
                counts["empty_documents"] += 1
            elif known.has_hash(digest):
                dropped += 1
            else:
                counts["written"] += 1
                counts["sentences"] += len(sides)
                yield digest, sides

    paths = write_parts(task.path, documents(), partial(_IdsPart, source, tokenizer.vocab_size))
    read = counts["written"] + counts["empty_documents"] + dropped
    counts |= {"documents": {str(source): read}, "bytes": task.chunk.bytes}
    if task.config.exclude:
        counts["rules"] = {"excluded_documents": {"documents": dropped}}
    return paths, counts | problem_counts(problems, task.number)


@dataclass
class _IdsPart:
    """Documents for one file."""

    source: int
    vocab_size: int
    hashes: list[int] = field(default_factory=list)
    lists: list[NDArray[np.int32]] = field(default_factory=list)
    """The lists of all documents, end to end: one for each document, or two."""
    tokens: int = 0

    def add(self, digest: int, sides: Sides) -> None:
        """Append a document."""
        self.hashes.append(digest)
        self.lists += [ids.astype("<i4") for ids in sides]
        self.tokens += sum(map(len, sides))

    @property
    def is_full(self) -> bool:
        """Whether the documents are enough for a file."""
        return self.tokens >= PART_IDS

    def write(self, path: Path) -> Path:
        """Write the documents."""
        dtype = token_type(self.vocab_size).to_pandas_dtype()
        ids = np.concatenate([np.zeros(0, np.int32), *self.lists]).astype(dtype)
        lengths, count = np.array(list(map(len, self.lists)), np.int64), len(self.hashes)
        sentence_offsets = np.arange(count + 1) * (len(lengths) // max(count, 1))
        columns = np.array(self.hashes, np.uint64), np.zeros(count, np.uint8), np.full(count, self.source, np.uint16)
        TokenizedDocuments(*columns, ids, lengths, sentence_offsets).write(path, bucket_schema(self.vocab_size))
        return path
