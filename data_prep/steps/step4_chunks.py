"""Step 4, for large corpora: many tokenized files become few, sorted by hash.

Every bucket of step 5 needs documents of every chunk. If each of many buckets opened each of many chunks, a terabyte of
text would take billions of opens. So if there are more than ``MAX_FILES`` files, groups of that many are merged, and if
that leaves too many, the merged files are merged again. A merged file has a record batch for each small range of
hashes, so that one range is read without the others. No unit opens more than ``MAX_FILES`` files, and no file is
opened more often than the ranges are divided among units: once a level for most of a large corpus.
"""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from data_prep.documents.arrow_files import write_batches
from data_prep.documents.document_set import SPLITS, document_schema, hash_range
from data_prep.documents.token_files import TokenFile, TokenFiles, TokenReader
from data_prep.execution.progress import TOKENS
from data_prep.execution.records import Counts
from data_prep.execution.work_units import LazyList, RunningBuild, Unit

MAX_FILES = 256


@dataclass(frozen=True)
class MergeTask:
    """Files of tokenized documents, and the file to write: a range of the hashes of all of these."""

    sources: tuple[TokenFile, ...]
    file: TokenFile
    vocab_size: int


def plan_levels(files: TokenFiles, folder: Path, buckets: int) -> list[TokenFiles]:
    """Return the tokenized chunks, and the files of each level of merging.

    Args:
        files: The tokenized chunks.
        folder: Where merged files go.
        buckets: Training buckets. A cell is no smaller than one, so that it costs no more than one to hold.
    """
    levels = [files]
    while levels[-1].files > MAX_FILES:
        groups = -(-levels[-1].files // MAX_FILES)
        grid = min(levels[-1].grid * MAX_FILES, buckets)
        grid -= grid % MAX_FILES if grid > MAX_FILES else 0  # so that the blocks of all levels begin at equal hashes
        # The hashes are divided among units as far as a bucket, which may need any of them, still opens no more than
        # MAX_FILES files. Where another level follows, and where one went before, there are units enough.
        blocks = MAX_FILES if len(levels) > 1 else max(1, MAX_FILES // groups)
        # Named after the chunks, so that a record of merged text is not taken for one of documents split again.
        name = f"{files.name.partition('{')[0]}{len(levels)}-{{block:05d}}-{{number:05d}}.arrow"
        levels.append(TokenFiles(folder, name, groups, min(blocks, grid), grid))
    return levels


def merge_chunks(build: RunningBuild, tokenized: TokenFiles, buckets: int, vocab_size: int) -> TokenFiles:
    """Return the files that buckets are filled from: the tokenized chunks, or the files they were merged into."""
    levels = plan_levels(tokenized, build.path("work", "chunks"), buckets)
    for before, after in pairwise(levels):
        build.run("chunks", merge_units(build, before, after, vocab_size), TOKENS)
    return levels[-1]


def merge_units(build: RunningBuild, before: TokenFiles, after: TokenFiles, vocab_size: int) -> LazyList[Unit]:
    """Return a unit for each file of a level of merging."""

    def unit(number: int) -> Unit:
        block, group = divmod(number, after.files)
        file = after[block, group]
        # A group of the files of the block before, of which the new block is a part.
        low, high = (hash_range(cell, file.grid)[0] for cell in (file.first_cell, file.first_cell + file.cells))
        first, end = (border * before.files // after.files for border in (group, group + 1))
        sources = before.overlapping(low, high, range(first, end))
        return build.unit("chunks", file.path.stem, merge, MergeTask(sources, file, vocab_size))

    return LazyList(after.blocks * after.files, unit)


def merge(task: MergeTask) -> tuple[list[Path], Counts]:
    """Write the documents of a range of hashes, cell by cell, as if they were one tokenized chunk."""
    schema, tokens = document_schema(task.vocab_size), 0
    reader, first = TokenReader(task.sources, task.vocab_size), task.file.first_cell

    def cell(number: int) -> pa.RecordBatch:
        nonlocal tokens
        documents = reader.read(range(len(SPLITS)), *hash_range(number, task.file.grid))
        tokens += len(documents.ids_T)
        # The sort is stable: documents with equal texts stay in the order of the chunks.
        return documents.take(np.lexsort((documents.hashes_D, documents.splits_D))).to_batch(schema)

    write_batches(task.file.path, schema, map(cell, range(first, first + task.file.cells)))
    return [task.file.path], {"tokens": tokens}
