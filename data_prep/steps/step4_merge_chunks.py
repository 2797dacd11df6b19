"""Step 4, for large corpora: many tokenized files become few, each with one range of hashes.

Every bucket of step 5 needs documents of every chunk. If each of many buckets opened each of many chunks, a terabyte of
text would take billions of opens. So where there are more than ``MAX_FILES`` chunks, they are merged first: groups of
that many chunks, each group into one file per range of hashes. No unit opens more than that many files.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.document_set import SPLITS, document_schema, hash_range, read_range
from data_prep.execution.work_units import TOKENS, Build, Counts

MAX_FILES = 256


@dataclass(frozen=True)
class TokenFile:
    """A file of tokenized documents, sorted by split and hash, that holds one range of hashes."""

    path: Path
    number: int = 0
    """Number of the range."""
    ranges: int = 1
    """Number of equal ranges that all hashes are divided into."""

    def overlaps(self, low: int, high: int) -> bool:
        """Return whether it may hold hashes from ``low`` to below ``high``."""
        own_low, own_high = hash_range(self.number, self.ranges)
        return own_low < high and low < own_high


@dataclass(frozen=True)
class MergeTask:
    """The tokenized chunks of a group, and the file to write."""

    sources: tuple[Path, ...]
    file: TokenFile
    vocab_size: int


def merge_chunks(build: Build, tokenized: list[Path], buckets: int, vocab_size: int) -> list[TokenFile]:
    """Return the files that buckets are filled from: the tokenized chunks, or what they were merged into."""
    if len(tokenized) <= MAX_FILES:
        return [TokenFile(path) for path in tokenized]
    ranges = min(MAX_FILES, buckets)  # a unit holds no more documents than a bucket does
    tasks = []
    for number in range(ranges):
        for first in range(0, len(tokenized), MAX_FILES):
            path = build.path("work", "spread", f"{number:05d}-{first // MAX_FILES:05d}.arrow")
            sources = tuple(tokenized[first : first + MAX_FILES])
            tasks.append(MergeTask(sources, TokenFile(path, number, ranges), vocab_size))
    build.run("merge chunks", [build.unit("spread", task.file.path.stem, merge, task) for task in tasks], TOKENS)
    return [task.file for task in tasks]


def merge(task: MergeTask) -> tuple[list[Path], Counts]:
    """Write the documents of a range of hashes as if they were one tokenized chunk."""
    low, high = hash_range(task.file.number, task.file.ranges)
    documents = read_range(task.sources, range(len(SPLITS)), low, high)
    # The sort is stable: documents with equal texts stay in the order of the chunks.
    documents = documents.take(np.lexsort((documents.hashes_D, documents.splits_D)))
    documents.write(task.file.path, document_schema(task.vocab_size))
    return [task.file.path], {"tokens": len(documents.ids_T)}
