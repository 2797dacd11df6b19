"""Between tokenization and buckets, for large corpora: many tokenized chunks become few files by range of hashes.

If each of many buckets opened each of many chunks, a terabyte would take billions of opens.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from data_prep.arrow_files import make_list, write_batches
from data_prep.execution.work_units import Counts
from data_prep.steps.step3_tokenize import SPLITS, read_documents_of
from data_prep.steps.step5_bucket import gather_lists, hash_range, joined

MAX_FILES = 256
"""Files that a unit opens at most; so many chunks need no merging."""


@dataclass(frozen=True)
class Part:
    """A file of tokenized documents, sorted by split and hash, that holds one range of hashes."""

    path: Path
    sources: tuple[Path, ...] = ()
    """The chunks that it is merged from; none where it is a chunk itself."""
    number: int = 0
    """Of the range."""
    ranges: int = 1

    @property
    def is_merged(self) -> bool:
        """Whether a unit has to write it."""
        return bool(self.sources)

    def overlaps(self, low: int, high: int) -> bool:
        """Return whether it may hold hashes from ``low`` to below ``high``."""
        own_low, own_high = hash_range(self.number, self.ranges)
        return own_low < high and low < own_high


def plan_parts(tokens: list[Path], folder: Path, buckets: int) -> list[Part]:
    """Return the files that buckets are filled from: the tokenized chunks, or what is to be merged of them."""
    if len(tokens) <= MAX_FILES:
        return [Part(path) for path in tokens]
    ranges = min(MAX_FILES, buckets)  # a unit holds no more than one bucket does, or a share of its chunks
    return [
        Part(
            folder / f"{number:05d}-{first // MAX_FILES:05d}.arrow",
            tuple(tokens[first : first + MAX_FILES]),
            number,
            ranges,
        )
        for number in range(ranges)
        for first in range(0, len(tokens), MAX_FILES)
    ]


@dataclass(frozen=True)
class SpreadTask:
    """A file to write."""

    part: Part
    schema: pa.Schema


def spread(task: SpreadTask) -> tuple[list[Path], Counts]:
    """Write the documents of a range of hashes as if they were one tokenized chunk."""
    part = task.part
    low, high = hash_range(part.number, part.ranges)
    batches = [
        batch
        for split in range(len(SPLITS))
        for path in part.sources
        for batch in read_documents_of(path, split, low, high)
    ]
    if not batches:
        write_batches(part.path, task.schema, [])
        return [part.path], {"tokens": 0}
    hashes, splits, sources = (joined(batches, name) for name in ("document_hash", "split", "source"))
    order = np.lexsort((hashes, splits))  # stable: equal texts stay in the order of the chunks
    ids, id_offsets = gather_lists([batch["input_ids"] for batch in batches], order)
    lengths, sentence_offsets = gather_lists([batch["sentence_lengths"] for batch in batches], order)
    columns = [
        pa.array(hashes[order]),
        pa.array(splits[order]),
        pa.array(sources[order]),
        make_list(ids, id_offsets),
        make_list(lengths, sentence_offsets),
    ]
    write_batches(part.path, task.schema, [pa.record_batch(columns, schema=task.schema)])
    return [part.path], {"tokens": len(ids)}
