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
3. Edges become clusters (`find_near_copies`).
4. For each group, the fate of its chunks' documents is gathered (`gather_fates`).
5. While a chunk is extracted, its documents are looked up in the file of its group (`DocumentFates`).

Clusters are connected components, found by rounds of units. Passing the smallest label on from neighbour to neighbour
takes as many rounds as a cluster is long, and templated pages make chains of thousands. So pointers are doubled, as by
large-star and small-star (Kiveris et al. 2014, "Connected components in MapReduce and beyond"). A document with edges
to smaller ones points at the smallest of these. A round has two steps, each a unit for every range of documents:

- `hook` (small-star): of all documents that it is connected with, a document points at the smallest, and the others are
  connected with that one.
- `jump` (large-star): each pointer and each other edge moves its end to where the document at its end points.

For example, documents 1 to 4 in a chain, with the edges 2-1, 3-2 and 4-3:

    round 1   hook: 2 -> 1, 3 -> 2, 4 -> 3   jump: 3 -> 1 and 4 -> 2, where 2 and 3 pointed
    round 2   hook: 2 -> 1, 3 -> 1, 4 -> 2   jump: 4 -> 1
    round 3   hook: 2 -> 1, 3 -> 1, 4 -> 1   jump: nothing moves, and no edge is left: one cluster, of which 1 stays

Each round halves all chains of pointers, and an end moves within its cluster, so none falls apart. When no other edge
is left and no pointer moves, every document points at the smallest of its cluster.

Each unit has its files in ``sources`` of its `RangeTask`, in this order:

    merge_keys     KEYS and EDGES of the chunks of a group           ->  MERGED, and MERGED_EDGES next to it
    join_keys      MERGED of all groups, of a block                  ->  JOINED, and all keys next to it
    hook           MERGED_EDGES and JOINED; from round 2 on, JUMPED  ->  HOOKED, and LEFT next to it
    jump           HOOKED and LEFT                                   ->  JUMPED
    count_members  HOOKED of the last round                          ->  MEMBERS
    write_fates    MEMBERS and HOOKED                                ->  SETTLED
    gather_fates   KEYS of the chunks of a group, and SETTLED        ->  FATES
"""

# D documents, E edges, K keys

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep.clean.cleaner import HUGE
from data_prep.clean.grouped_hashes import (
    CHUNK_NAME,
    HASHES_PER_RANGE,
    ROWS_AT_ONCE,
    HashPlan,
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
from data_prep.execution.work_units import RunningBuild
from megabert.foundation.randomness.keyed import mix

KEYS, EDGES = CHUNK_NAME, "{:06d}-edges.npy"
MERGED, MERGED_EDGES, JOINED = "merged-{:07d}.npy", "merged-{:07d}-edges.npy", "joined-{:06d}.npy"
MEMBERS, SETTLED, FATES = "members-{:05d}.npy", "settled-{:05d}.npy", "fates-{:05d}.npy"
HOOKED, LEFT, JUMPED = "hook-{:03d}-{{:05d}}.npy", "hook-{:03d}-{{:05d}}-left.npy", "jump-{:03d}-{{:05d}}.npy"
SIZES = {2: "2", 3: "3-4", 5: "5-8", 9: "9-32", 33: "33-1,000", 1001: "1,001-10,000", HUGE + 1: "10,001 or more"}
"""Bins in which clusters are counted by their documents, by the smallest number of each."""
Sources = tuple[tuple[str, int], ...]
UnitFunction = Callable[[RangeTask], tuple[list[Path], Counts]]


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

    @lru_cache(maxsize=1)  # noqa: B019
    def keys(self, text: str) -> Rows:
        """Return the key of each band, shape (bands,); none for a text without a word.

        The last ones are kept: a document is compared with earlier builds by its keys, which are written next.
        """
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
    """Write the edges that a range of the keys of all groups gives, and next to them its keys, shape (1, K)."""
    keys, edges = join(joined(task.rows(), 2))
    paths = [write_rows(task.path, edges), write_rows(sibling_path(task.path, "keys"), keys[:1])]
    return paths, {"edges": edges.shape[1]}


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


def find_near_copies(build: RunningBuild, plan: HashPlan) -> Counts:
    """Find the documents that are near copies of others, and write a file of `FATES` for each group of chunks.

    Args:
        build: The build, in whose ``work/near`` the keys and edges of each chunk are.
        plan: How the keys are parted.

    Returns:
        The counts of clusters.
    """
    folder = build.path("work", "near")

    def task(sources: Sources, number: int, parts: int, name: str, first: int = 0) -> RangeTask:
        return RangeTask(sources, folder, number, parts, folder / name, first)

    def merge(index: int) -> RangeTask:
        block, group = divmod(index, plan.groups)
        chunks = plan.chunks_of(group)
        sources = (KEYS, len(chunks)), (EDGES, len(chunks))
        return task(sources, block, plan.blocks, MERGED.format(index), chunks.start)

    def join(number: int) -> RangeTask:
        first = plan.block_of(number) * plan.groups
        return task(((MERGED, plan.groups),), number, plan.ranges, JOINED.format(number), first)

    def run(title: str, function: UnitFunction, count: int, make: Callable[[int], RangeTask]) -> Counts:
        return build.run(f"near duplicates: {title}", build.units("near", function, count, make)).counts

    merged = plan.groups * plan.blocks
    edges = run("merge", merge_keys, merged, merge)["edges"] + run("join", join_keys, plan.ranges, join)["edges"]
    ranges = max(1, -(-edges // HASHES_PER_RANGE))

    def by_range(title: str, function: UnitFunction, sources: Sources, name: str) -> Counts:
        return run(title, function, ranges, lambda number: task(sources, number, ranges, name.format(number)))

    # Rounds over ranges of documents, until no edge is left and no pointer moves. The files of a round stay until
    # all of work/near is deleted: a build that continues takes a unit for finished if its files are there, and would
    # otherwise do every round again.
    sources: Sources = (MERGED_EDGES, merged), (JOINED, plan.ranges)
    rounds, is_moving = 0, True
    while is_moving:
        title, (hooked, left, jumped) = f"round {rounds + 1}", (name.format(rounds) for name in (HOOKED, LEFT, JUMPED))
        counts = by_range(f"{title}, pointers", hook, sources, hooked)
        counts |= by_range(f"{title}, ends", jump, ((hooked, ranges), (left, ranges)), jumped)
        sources, rounds, is_moving = ((jumped, ranges),), rounds + 1, bool(counts["left"] or counts["moved"])

    by_range("sizes", count_members, ((hooked, ranges),), MEMBERS)
    clusters = by_range("clusters", write_fates, ((MEMBERS, ranges), (hooked, ranges)), SETTLED)["near_duplicates"]

    def gather(group: int) -> RangeTask:
        chunks = plan.chunks_of(group)
        return task(((KEYS, len(chunks)), (SETTLED, ranges)), 0, 1, FATES.format(group), chunks.start)

    run("gather", gather_fates, plan.groups, gather)
    return {**clusters, "rounds": rounds}


def hook(task: RangeTask) -> tuple[list[Path], Counts]:
    """Write the pointers of a range of documents, and the edges that are left: each of shape (2, n), ascending."""
    edges = distinct(joined((rows for name in range(len(task.sources)) for rows in task.rows(name)), 2))
    is_first, smallest = first_of_each(edges)
    left = distinct(np.stack([edges[1], smallest])[:, ~is_first])
    paths = [write_rows(task.path, edges[:, is_first]), write_rows(sibling_path(task.path, "left"), left)]
    return paths, {"left": left.shape[1]}


def jump(task: RangeTask) -> tuple[list[Path], Counts]:
    """Write the pointers and the edges of a range with their ends moved: shape (2, n), ascending."""
    (pointers, ranges), (left, _) = task.sources
    edges = np.hstack([_own(task, pointers), _own(task, left)])
    ends, inverse = np.unique(edges[1], return_inverse=True)
    moves, further = looked_up(ends, pointers, task.folder, ranges)
    ends[moves] = further
    return [write_rows(task.path, distinct(np.stack([edges[0], ends[inverse]])))], {"moved": int(moves.sum())}


def count_members(task: RangeTask) -> tuple[list[Path], Counts]:
    """Write how many documents of a range point at each document: shape (2, n), ascending."""
    ((pointers, _),) = task.sources
    roots, counts = np.unique(_own(task, pointers)[1], return_counts=True)
    return [write_rows(task.path, np.stack([roots, counts.astype(np.uint64)]))], {}


def write_fates(task: RangeTask) -> tuple[list[Path], Counts]:
    """Write the fate of each document of a range that is in a cluster, and count the clusters: shape (2, n), ascending.

    The fate is 0 if the document is dropped, else the number of documents of its cluster.
    """
    members, pointers = joined(task.rows(), 2), _own(task, task.sources[1][0])
    roots, inverse = np.unique(members[0], return_inverse=True)
    sizes = np.ones(len(roots), np.uint64)  # the one that stays
    np.add.at(sizes, inverse, members[1])
    fates = np.hstack([np.stack([roots, sizes]), np.stack([pointers[0], np.zeros(pointers.shape[1], np.uint64)])])
    is_huge = sizes > HUGE
    bins = np.bincount(np.searchsorted(list(SIZES), sizes, side="right") - 1, minlength=len(SIZES)).tolist()
    clusters: Counts = {
        "clusters": len(roots),
        "documents": int(sizes.sum()),
        "sizes": {name: number for name, number in zip(SIZES.values(), bins, strict=True) if number},
        "huge": {
            f"{root:016x}": size for root, size in zip(*(x[is_huge].tolist() for x in (roots, sizes)), strict=True)
        },
    }
    return [write_rows(task.path, distinct(fates))], {"near_duplicates": clusters}


def _own(task: RangeTask, name: str) -> Rows:
    return read_rows(task.folder / name.format(task.number))
