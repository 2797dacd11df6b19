"""Near duplicates of documents over the whole corpus, for the cleaning rule ``near_duplicates``.

Two documents are *near copies* if one band of their MinHash signatures is equal (`data_prep.clean.minhash_loops`). A
*cluster* is all documents that such pairs connect; the one whose text has the smallest hash stays. So the text alone
decides. Documents with the same text have the same hash and count as one.

Neither the keys of all bands nor the pairs would fit into memory. Keys go by groups of chunks and ranges of hashes, as
`data_prep.clean.grouped_hashes` has it, and documents by ranges of hashes:

1. For each chunk, its keys are written, each with the smallest document that has it; every other document with that key
   is an *edge* to this one (`write_keys`).
2. For each group and each block of keys, the keys and edges of its chunks are merged (`merge_keys`); keys that several
   chunks have give more edges. For each range of keys, the keys of all groups do (`join_keys`).
3. Edges become clusters (`data_prep.clean.near_copies`).
4. For each group, the fate of its chunks' documents is gathered (`gather_fates`).
5. While a chunk is extracted, its documents are looked up in the file of its group (`DocumentFates`).
"""

# D documents, E edges, K keys

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep.clean.grouped_hashes import (
    ROWS_AT_ONCE,
    RangeTask,
    Rows,
    distinct,
    first_of_each,
    joined,
    read_rows,
    rows_of,
    text_hash,
    write_rows,
)
from data_prep.config.cleaning import CleanConfig
from data_prep.documents.document_set import hash_range, rows_in_range
from data_prep.execution.records import Counts
from megabert.foundation.randomness.keyed import mix


@dataclass(frozen=True)
class Signature:
    """How texts are compared."""

    words: int
    bands: int
    rows: int

    @classmethod
    def of(cls, config: CleanConfig) -> "Signature":
        """Take the bounds of the rule."""
        return cls(config.near_duplicate_words, config.near_duplicate_bands, config.near_duplicate_rows)

    @cached_property
    def _functions(self) -> tuple[Rows, Rows]:
        numbers = np.arange(self.bands * self.rows)
        return mix(1, numbers) | np.uint64(1), mix(2, numbers)

    def keys(self, text: str) -> Rows:
        """Return the key of each band, shape (bands,); none for a text without a word."""
        from data_prep.clean.minhash_loops import write_band_keys

        keys = np.empty(self.bands, np.uint64)
        # Python alone lower-cases letters beyond ASCII.
        text_bytes = np.frombuffer((text if text.isascii() else text.lower()).encode(), np.uint8)
        return keys if write_band_keys(text_bytes, self.words, *self._functions, keys) else keys[:0]


def sibling_path(path: Path, name: str) -> Path:
    """Return the path of another file of a unit: ``000012-edges.npy`` next to ``000012.npy``."""
    return path.with_name(f"{path.stem}-{name}.npy")


def join(keys: Rows) -> tuple[Rows, Rows]:
    """Return each key with its smallest document, shape (2, K), and an edge to it from each other one, (2, E)."""
    keys = keys[:, np.lexsort(keys[::-1])]
    is_first, smallest = first_of_each(keys)
    is_edge = keys[1] != smallest
    return keys[:, is_first], distinct(np.stack([keys[1], smallest])[:, is_edge])


def write_keys(documents: Iterator[list[str]], signature: Signature, path: Path) -> tuple[list[Path], Counts]:
    """Write the keys of a chunk's documents, and the edges between these."""
    keys, edges = joined((), 2), [joined((), 2)]
    waiting: list[Rows] = []

    def flush() -> None:
        nonlocal keys
        keys, new = join(joined((keys, *waiting), 2))
        edges.append(new)
        waiting.clear()

    for paragraphs in documents:
        own_keys = signature.keys("\n".join(paragraphs))
        waiting.append(np.stack([own_keys, np.full(len(own_keys), text_hash(paragraphs), np.uint64)]))
        if len(waiting) * signature.bands >= ROWS_AT_ONCE:
            flush()
    flush()
    pairs = distinct(joined(edges, 2))
    paths = [write_rows(path, keys), write_rows(sibling_path(path, "edges"), pairs)]
    return paths, {"keys": keys.shape[1], "edges": pairs.shape[1]}


def merge_keys(task: RangeTask) -> tuple[list[Path], Counts]:
    """Merge a block of the keys of a group's chunks, and of their edges."""
    keys, new = join(joined(task.rows(), 2))
    edges = distinct(joined((*task.rows(1), new), 2))
    paths = [write_rows(task.path, keys), write_rows(sibling_path(task.path, "edges"), edges)]
    return paths, {"keys": keys.shape[1], "edges": edges.shape[1]}


def join_keys(task: RangeTask) -> tuple[list[Path], Counts]:
    """Write the edges that a range of the keys of all groups gives."""
    edges = join(joined(task.rows(), 2))[1]
    return [write_rows(task.path, edges)], {"edges": edges.shape[1]}


def looked_up(hashes: Rows, name: str, folder: Path, ranges: int) -> tuple[NDArray[np.bool_], Rows]:
    """Look ascending hashes up in tables by ranges; return which are there, and the number beside each of these.

    Args:
        hashes: Shape (n,).
        name: Name of the tables, with a place for the range.
        folder: Their folder.
        ranges: Equal ranges that all hashes are divided into.
    """
    is_known, values = np.zeros(len(hashes), bool), np.zeros(len(hashes), np.uint64)
    for number in range(ranges):
        own = rows_in_range(hashes, *hash_range(number, ranges))
        if own.start < own.stop:
            table = read_rows(folder / name.format(number))
            slots = np.minimum(np.searchsorted(table[0], hashes[own]), max(table.shape[1] - 1, 0))
            if table.shape[1]:
                is_known[own] = table[0, slots] == hashes[own]
                values[own] = table[1, slots]
    return is_known, values[is_known]


def gather_fates(task: RangeTask) -> tuple[list[Path], Counts]:
    """Write the documents of a group's chunks that are in clusters: hash, fate, chunk, shape (3, D), by chunk and hash.

    The fate is 0 if the document is dropped, else the number of documents of its cluster.
    """
    (keys_name, count), (fates_name, ranges) = task.sources
    parts = [joined((), 3)]
    waiting: list[Rows] = []

    def flush() -> None:
        rows = np.concatenate([*waiting, joined((), 2)], axis=1)
        hashes, inverse = np.unique(rows[0], return_inverse=True)
        is_known, fates = looked_up(hashes, fates_name, task.folder, ranges)
        slots = np.cumsum(is_known) - 1
        known = is_known[inverse]
        parts.append(np.vstack([rows[0, known], fates[slots[inverse[known]]], rows[1, known]]))
        waiting.clear()

    for chunk in range(task.first, task.first + count):
        path = task.folder / keys_name.format(chunk)
        documents = np.union1d(read_rows(path)[1], read_rows(sibling_path(path, "edges"))[0])
        waiting.append(np.stack([documents, np.full(len(documents), chunk, np.uint64)]))
        if sum(part.shape[1] for part in waiting) >= ROWS_AT_ONCE:
            flush()
    flush()
    return [write_rows(task.path, joined(parts, 3))], {}


class DocumentFates:
    """Tells which documents of a chunk are near copies of others."""

    def __init__(self, path: Path, chunk: int) -> None:
        """Read what `gather_fates` wrote for the chunk's group."""
        rows = read_rows(path, 3)
        hashes, fates, _ = np.array(rows[:, rows_of(rows[2], chunk, chunk + 1)])
        self._fates: dict[int, int] = dict(zip(hashes.tolist(), fates.tolist(), strict=True))

    @property
    def dropped(self) -> Rows:
        """Hashes of the documents that do not stay."""
        return np.array([name for name, fate in self._fates.items() if not fate], np.uint64)

    def cluster_size(self, paragraphs: list[str]) -> int:
        """Return 0 for a document that is a near copy of a kept one, else the documents of its cluster."""
        return self._fates.get(text_hash(paragraphs), 1)
