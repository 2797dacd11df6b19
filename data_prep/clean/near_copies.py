"""The part of step 1 that finds clusters of near duplicates, from the keys of each chunk's documents.

Edges become clusters, as connected components, by rounds of units. Passing the smallest label on from neighbour to
neighbour takes as many rounds as a cluster is long, and templated pages make chains of thousands. So pointers are
doubled, as by large-star and small-star (Kiveris et al. 2014, "Connected components in MapReduce and beyond"). A
document with edges to smaller ones points at the smallest of these. A round has two steps, each a unit for every range
of documents:

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
    join_keys      MERGED of all groups, of a block                  ->  JOINED
    hook           MERGED_EDGES and JOINED; from round 2 on, JUMPED  ->  HOOKED, and LEFT next to it
    jump           HOOKED and LEFT                                   ->  JUMPED
    count_members  HOOKED of the last round                          ->  MEMBERS
    write_fates    MEMBERS and HOOKED                                ->  SETTLED
    gather_fates   KEYS of the chunks of a group, and SETTLED        ->  GATHERED
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from data_prep.clean.cleaner import HUGE
from data_prep.clean.grouped_hashes import (
    CHUNK_NAME,
    HASHES_PER_RANGE,
    HashPlan,
    RangeTask,
    Rows,
    distinct,
    first_of_each,
    joined,
    read_rows,
    write_rows,
)
from data_prep.clean.near_duplicates import gather_fates, join_keys, looked_up, merge_keys, sibling_path
from data_prep.execution.records import Counts
from data_prep.execution.work_units import RunningBuild

KEYS, EDGES = CHUNK_NAME, "{:06d}-edges.npy"
MERGED, MERGED_EDGES, JOINED = "merged-{:07d}.npy", "merged-{:07d}-edges.npy", "joined-{:06d}.npy"
MEMBERS, SETTLED, GATHERED = "members-{:05d}.npy", "settled-{:05d}.npy", "fates-{:05d}.npy"
HOOKED, LEFT, JUMPED = "hook-{:03d}-{{:05d}}.npy", "hook-{:03d}-{{:05d}}-left.npy", "jump-{:03d}-{{:05d}}.npy"
SIZES = {2: "2", 3: "3-4", 5: "5-8", 9: "9-32", 33: "33-1,000", 1001: "1,001-10,000", HUGE + 1: "10,001 or more"}
"""Bins in which clusters are counted by their documents, by the smallest number of each."""
Sources = tuple[tuple[str, int], ...]
UnitFunction = Callable[[RangeTask], tuple[list[Path], Counts]]


def find_near_copies(build: RunningBuild, plan: HashPlan) -> tuple[Callable[[int], Path], Counts]:
    """Find the documents that are near copies of others.

    Args:
        build: The build, in whose ``work/near`` the keys and edges of each chunk are.
        plan: How the keys are parted.

    Returns:
        What names the file that has the fates of a chunk's documents, and the counts of clusters.
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
        return task(((KEYS, len(chunks)), (SETTLED, ranges)), 0, 1, GATHERED.format(group), chunks.start)

    run("gather", gather_fates, plan.groups, gather)
    return lambda chunk: folder / GATHERED.format(chunk // plan.chunks_a_group), {**clusters, "rounds": rounds}


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
