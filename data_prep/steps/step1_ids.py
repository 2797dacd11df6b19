"""Step 1 of a build from ids: read each chunk of the input, check its ids, and write them as tokenized documents.

There is no text to clean, to cut into sentences or to tokenize. So the vocabulary (step 2) is there first, and step 3
only gives the documents their splits. From there on ids and text are one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep.config.build import BuildConfig
from data_prep.documents.arrow_files import offsets_of
from data_prep.documents.document_set import TokenizedDocuments, bucket_schema, hash_bytes, tokenizer_of
from data_prep.execution.problems import Problems
from data_prep.execution.progress import BYTES
from data_prep.execution.records import Counts
from data_prep.execution.work_units import Build, LazyList
from data_prep.extract.ids import IdChecker, Sides, id_documents
from data_prep.extract.inputs import plan_chunks
from data_prep.extract.opening import InputChunk, InputFile
from data_prep.steps.step1_extract import count_files, numbered_examples, part_path
from megabert.tokens.shards import token_type

PART_IDS = 4 << 20
"""Ids that a file holds at most, about."""


@dataclass(frozen=True)
class IdTask:
    """A chunk, the vocabulary of its ids, and where its documents go."""

    chunk: InputChunk
    number: int
    """Number of the chunk over the whole build."""
    config: BuildConfig
    tokenizer: Path
    path: Path
    """Output without suffix: parts are named ``PATH-000.arrow`` and so on."""


def read_ids(build: Build, files: list[InputFile]) -> tuple[Sequence[Path], Counts]:
    """Read the documents of all input files.

    Returns:
        The files of documents, in the order of the input, and the counts.
    """
    chunks, tokenizer = plan_chunks(files, build.config.chunk_bytes), build.path("tokenizer")

    def output(number: int) -> Path:
        return build.path("work", "ids", f"{number:06d}")

    def task(number: int) -> IdTask:
        return IdTask(chunks[number], number, build.config, tokenizer, output(number))

    results = build.run("ids", build.units("ids", write_documents, len(chunks), task), BYTES, keep=count_files)
    first_parts = offsets_of(np.array(results.kept, np.int64))

    def document_file(index: int) -> Path:
        number = int(np.searchsorted(first_parts, index, side="right")) - 1
        return part_path(output(number), index - int(first_parts[number]))

    return LazyList(int(first_parts[-1]), document_file), results.counts


def write_documents(task: IdTask) -> tuple[list[Path], Counts]:
    """Write the documents of a chunk; empty ones are counted and left out.

    Raises:
        DataError: The chunk cannot be read, or has a list that is no ids, and the build may not drop documents.
    """
    tokenizer, source = tokenizer_of(task.tokenizer), task.chunk.file.source
    problems = Problems(is_strict=task.config.max_bad_share == 0)
    documents = sentences = empty = 0
    paths: list[Path] = []
    part = _Part()

    def write_part() -> None:
        paths.append(part.write(part_path(task.path, len(paths)), source, tokenizer.vocab_size))

    for sides in id_documents(task.chunk, IdChecker(tokenizer), problems):
        documents += 1
        if not sum(map(len, sides)):
            empty += 1
            continue
        sentences += len(sides)
        part.add(sides)
        if part.tokens >= PART_IDS:
            write_part()
            part = _Part()
    if part.hashes or not paths:
        write_part()
    counts: Counts = {"documents": {str(source): documents}, "empty_documents": empty, "written": documents - empty}
    counts |= {"sentences": sentences, "characters": 0, "bytes": task.chunk.bytes, "rules": {}}
    lost = {"lost_bytes": problems.lost_bytes} if problems.lost_bytes else {}
    counts |= {"problems": dict(problems.counts), **lost}
    return paths, {**counts, "examples": numbered_examples(problems, task.number)}


@dataclass
class _Part:
    """Documents for one file."""

    hashes: list[int] = field(default_factory=list)
    lists: list[NDArray[np.int32]] = field(default_factory=list)
    """The lists of all documents, end to end: one for each document, or two."""
    sides: int = 1
    """Lists of each document."""
    tokens: int = 0

    def add(self, sides: Sides) -> None:
        """Append a document. Its hash is of the ids and of where B begins."""
        own = [ids.astype("<i4") for ids in sides]
        self.hashes.append(hash_bytes(b"".join(ids.tobytes() for ids in own) + b"%d" % len(own[0])))
        self.lists += own
        self.sides = len(own)
        self.tokens += sum(map(len, own))

    def write(self, path: Path, source: int, vocab_size: int) -> Path:
        """Write the documents."""
        dtype = token_type(vocab_size).to_pandas_dtype()
        ids = np.concatenate([np.zeros(0, np.int32), *self.lists]).astype(dtype)
        lengths, count = np.array(list(map(len, self.lists)), np.int64), len(self.hashes)
        sentence_offsets = np.arange(count + 1) * self.sides
        columns = np.array(self.hashes, np.uint64), np.zeros(count, np.uint8), np.full(count, source, np.uint16)
        TokenizedDocuments(*columns, ids, lengths, sentence_offsets).write(path, bucket_schema(vocab_size))
        return path
