"""Step 1 of a build from ids: read each chunk of the input, check its ids, and write them as tokenized documents.

There is no text to clean, to cut into sentences or to tokenize. So the vocabulary (step 2) is there first, and step 3
only gives the documents their splits. From there on ids and text are one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep.documents.document_set import TokenizedDocuments, bucket_schema, hash_bytes, tokenizer_of
from data_prep.execution.problems import Problems
from data_prep.execution.records import Counts
from data_prep.execution.work_units import RunningBuild
from data_prep.extract.ids import IdChecker, Sides, id_documents
from data_prep.extract.inputs import plan_chunks
from data_prep.extract.opening import InputFile
from data_prep.steps.document_reader import ExtractTask, problem_counts
from data_prep.steps.step1_extract import read_chunks, write_parts
from megabert.tokens.shards.format import token_type

PART_IDS = 4 << 20
"""Ids that a file holds at most, about."""


def read_ids(build: RunningBuild, files: list[InputFile]) -> tuple[Sequence[Path], Counts]:
    """Read the documents of all input files.

    Returns:
        The files of documents, in the order of the input, and the counts.
    """
    chunks, tokenizer = plan_chunks(files, build.config.chunk_bytes), build.path("tokenizer")
    return read_chunks(build, "ids", write_documents, chunks, {"tokenizer": lambda number: tokenizer}, {})


def write_documents(task: ExtractTask) -> tuple[list[Path], Counts]:
    """Write the documents of a chunk; empty ones are counted and left out.

    Raises:
        DataError: The chunk cannot be read, or has a list that is no ids, and the build may not drop documents.
    """
    assert task.tokenizer is not None
    tokenizer, source = tokenizer_of(task.tokenizer), task.chunk.file.source
    problems = Problems(is_strict=task.config.max_bad_share == 0)
    counts: Counts = {"empty_documents": 0, "written": 0, "sentences": 0, "characters": 0, "rules": {}}

    def documents() -> Iterator[tuple[Sides]]:
        for sides in id_documents(task.chunk, IdChecker(tokenizer), problems):
            if any(map(len, sides)):
                counts["written"] += 1
                counts["sentences"] += len(sides)
                yield (sides,)
            else:
                counts["empty_documents"] += 1

    paths = write_parts(task.path, documents(), partial(_Part, source, tokenizer.vocab_size))
    counts |= {"documents": {str(source): counts["written"] + counts["empty_documents"]}, "bytes": task.chunk.bytes}
    return paths, counts | problem_counts(problems, task.number)


@dataclass
class _Part:
    """Documents for one file."""

    source: int
    vocab_size: int
    hashes: list[int] = field(default_factory=list)
    lists: list[NDArray[np.int32]] = field(default_factory=list)
    """The lists of all documents, end to end: one for each document, or two."""
    tokens: int = 0

    def add(self, sides: Sides) -> None:
        """Append a document. Its hash is of the ids and of where B begins."""
        own = [ids.astype("<i4") for ids in sides]
        self.hashes.append(hash_bytes(b"".join(ids.tobytes() for ids in own) + b"%d" % len(own[0])))
        self.lists += own
        self.tokens += sum(map(len, own))

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
