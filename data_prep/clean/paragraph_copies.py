"""Exact duplicates of paragraphs over the whole corpus, for the cleaning rule ``duplicate_paragraphs``.

A paragraph that several documents have stays in one of them, its *owner*: of the documents that all other rules keep,
the one whose text has the smallest hash. So the text alone decides, and neither the order of the input nor the way it
is cut into files and chunks. Documents with the same text have the same hash and count as one.

The steps follow `data_prep.clean.grouped_hashes`: `ParagraphHashes` for a chunk, `merge_hashes` for a group and a
block, `find_copies` for a range, `gather_copies` for a group, and `ParagraphOwners` while a chunk is extracted.
"""

# P paragraphs

from collections.abc import Iterator
from itertools import count, pairwise
from pathlib import Path

import numpy as np

from data_prep.clean.grouped_hashes import (
    CHUNK_NAME,
    ROWS_AT_ONCE,
    HashPlan,
    RangeTask,
    Rows,
    array_file,
    distinct,
    first_of_each,
    joined,
    read_rows,
    rows_of,
    text_hash,
    write_rows,
)
from data_prep.documents.document_set import hash_text
from data_prep.execution.records import Counts
from data_prep.execution.work_units import RunningBuild

FOUND, COPIES = "found-{:05d}.npy", "copies-{:05d}.npy"


def find_paragraph_copies(build: RunningBuild, plan: HashPlan) -> None:
    """Find the paragraphs that documents lose to another one, and write a file of `COPIES` for each group of chunks.

    Args:
        build: The build, in whose ``work/paragraphs`` the hashes of each chunk are.
        plan: How the hashes are parted.
    """
    folder = build.path("work", "paragraphs")

    def merge(index: int) -> RangeTask:
        group, block = divmod(index, plan.blocks)
        chunks, path = plan.chunks_of(group), folder / f"merged-{group:05d}-{block:05d}.npy"
        return RangeTask(((CHUNK_NAME, len(chunks)),), folder, block, plan.blocks, path, chunks.start)

    def find(number: int) -> RangeTask:
        merged = f"merged-{{:05d}}-{plan.block_of(number):05d}.npy"
        return RangeTask(((merged, plan.groups),), folder, number, plan.ranges, folder / FOUND.format(number))

    def gather(group: int) -> RangeTask:
        chunks, path = plan.chunks_of(group), folder / COPIES.format(group)
        return RangeTask(((FOUND, plan.ranges),), folder, chunks.start, len(chunks), path)

    build.run("merge paragraphs", build.units("paragraphs", merge_hashes, plan.groups * plan.blocks, merge))
    build.run("duplicate paragraphs", build.units("paragraphs", find_copies, plan.ranges, find))
    build.run("gather paragraphs", build.units("paragraphs", gather_copies, plan.groups, gather))


class ParagraphHashes:
    """Collects the hashes of a chunk's paragraphs that are long enough, with the hashes of documents that have them."""

    def __init__(self, min_characters: int, *, are_all_kept: bool = True) -> None:
        """Start empty.

        Args:
            min_characters: Shorter paragraphs may repeat.
            are_all_kept: Whether all documents are kept. Then the two with the smallest hashes are enough for each
                paragraph: the first may own it, and the second shows that others of the chunk then lose it.
        """
        self._min_characters, self._reduced = min_characters, two_smallest if are_all_kept else distinct
        self._rows: Rows = joined((), 2)
        self._waiting: list[tuple[int, int]] = []

    def of(self, documents: Iterator[list[str]]) -> Iterator[list[str]]:
        """Yield documents, and take the hashes of their paragraphs."""
        for paragraphs in documents:
            own = text_hash(paragraphs)
            self._waiting += [(hash_text(p), own) for p in paragraphs if len(p) >= self._min_characters]
            self._waiting.append((own, own))  # the whole text, for builds that are to know it
            if len(self._waiting) >= ROWS_AT_ONCE:
                self._flush()
            yield paragraphs

    def write(self, path: Path) -> tuple[list[Path], Counts]:
        """Write the rows, ascending: shape (2, P)."""
        self._flush()
        return [write_rows(path, self._rows)], {"paragraphs": self._rows.shape[1]}

    def _flush(self) -> None:
        waiting, self._waiting = np.array(self._waiting, np.uint64).reshape(-1, 2).T, []
        self._rows = self._reduced(np.hstack([self._rows, waiting]))


def write_kept(source: Path, dropped: Rows, path: Path) -> tuple[list[Path], Counts]:
    """Write the rows of a chunk's paragraphs again, without the documents that were dropped since.

    Args:
        source: The rows of all documents.
        dropped: Hashes of the dropped documents.
        path: The file to write.
    """
    rows = read_rows(source)
    rows = two_smallest(rows[:, ~np.isin(rows[1], dropped)])
    return [write_rows(path, rows)], {"paragraphs": rows.shape[1]}


def two_smallest(rows: Rows) -> Rows:
    """Return the different rows in ascending order, of each paragraph the first two."""
    rows = distinct(rows)
    is_third = np.zeros(rows.shape[1], bool)
    is_third[2:] = rows[0, 2:] == rows[0, :-2]
    return rows[:, ~is_third]


def merge_hashes(task: RangeTask) -> tuple[list[Path], Counts]:
    """Write the rows of a block that the chunks of a group have, ascending, each with its chunk: shape (3, P)."""
    parts = zip(count(task.first), task.rows(), strict=False)
    rows = joined((np.vstack([part, np.full(part.shape[1], chunk, np.uint64)]) for chunk, part in parts), 3)
    return [write_rows(task.path, rows[:, np.argsort(rows[0], kind="stable")])], {}


def find_copies(task: RangeTask) -> tuple[list[Path], Counts]:
    """Write the paragraphs of a range that documents lose: hash, owner and chunk, by chunk and hash, shape (3, P).

    The hashes of whole texts in the range are written next to them, shape (1, n).
    """
    rows = joined(map(np.array, task.rows(height=3)), 3)
    rows = rows[:, np.lexsort(rows[1::-1])]
    texts = rows[:1, rows[0] == rows[1]]
    # The first document of each paragraph owns it; a chunk with another one has the paragraph in its list, once.
    _, owners = first_of_each(rows)
    lost = np.stack([rows[2], rows[0], owners])[:, rows[1] != owners]
    rows = distinct(lost)[[1, 2, 0]]
    paths = [write_rows(task.path, rows), write_rows(task.path.with_name(f"{task.path.stem}-texts.npy"), texts)]
    return paths, {"repeated_paragraphs": rows.shape[1]}


def gather_copies(task: RangeTask) -> tuple[list[Path], Counts]:
    """Write what all ranges have of the chunks of a group, by chunk and hash: shape (3, P).

    A corpus that repeats itself loses every other paragraph. So a few chunks are gathered at a time, as many as have
    about `ROWS_AT_ONCE` rows together.
    """
    first, end = task.number, task.number + task.parts
    # Ranges of hashes follow each other, so that their rows, joined, ascend in each chunk.
    borders = np.arange(first, end + 1, dtype=np.uint64)
    rows_C = np.zeros(task.parts, np.int64)
    for path in task.paths():
        rows_C += np.diff(np.searchsorted(read_rows(path, 3)[2], borders))
    stops = np.searchsorted(np.cumsum(rows_C), np.arange(0, rows_C.sum(), ROWS_AT_ONCE), side="right") + first
    with array_file(task.path, (3, int(rows_C.sum()))) as append:
        for start, stop in pairwise(sorted({first, *stops.tolist(), end})):
            parts = (read_rows(path, 3) for path in task.paths())
            rows = joined((np.array(part[:, rows_of(part[2], start, stop)]) for part in parts), 3)
            append(rows[:, np.argsort(rows[2], kind="stable")])
    return [task.path], {}


class ParagraphOwners:
    """Tells which paragraphs a document of a chunk keeps."""

    def __init__(self, path: Path, chunk: int, min_characters: int) -> None:
        """Read the owners of the paragraphs of a chunk.

        Args:
            path: The file that `gather_copies` wrote for the chunk's group.
            chunk: Number of the chunk.
            min_characters: Shorter paragraphs may repeat.
        """
        copies = read_rows(path, 3)
        self._min_characters = min_characters
        self._lost, self._owners = np.array(copies[:2, rows_of(copies[2], chunk, chunk + 1)])

    def kept(self, paragraphs: list[str]) -> list[str]:
        """Return the paragraphs of a document that it keeps: short ones, and its own, each once."""
        own, seen = text_hash(paragraphs), set()
        kept = []
        for paragraph in paragraphs:
            if len(paragraph) >= self._min_characters:
                key = hash_text(paragraph)
                if key in seen or self._owner(key, own) != own:
                    continue
                seen.add(key)
            kept.append(paragraph)
        return kept

    def _owner(self, paragraph: int, own: int) -> int:
        """Return the hash of the document that owns a paragraph: ``own`` if no other document of any chunk has it."""
        place = int(np.searchsorted(self._lost, np.uint64(paragraph)))
        is_known = place < len(self._lost) and int(self._lost[place]) == paragraph
        return int(self._owners[place]) if is_known else own
