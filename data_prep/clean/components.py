"""Clusters of documents from edges, as connected components by rounds of units, for the rule ``near_duplicates``.

Passing the smallest label on from neighbour to neighbour takes as many rounds as a cluster is long, and templated pages
make chains of thousands. So pointers are doubled, as by large-star and small-star (Kiveris et al. 2014, "Connected
components in MapReduce and beyond"). A document with edges to smaller ones points at the smallest of these. A round has
two steps, each a unit for every range of documents:

- `hook` (small-star): of all documents that it is connected with, a document points at the smallest, and the others are
  connected with that one.
- `jump` (large-star): each pointer and each other edge moves its end to where the document at its end points.

For example, documents 1 to 4 in a chain, with the edges 2-1, 3-2 and 4-3:

    round 1   hook: 2 -> 1, 3 -> 2, 4 -> 3   jump: 3 -> 1 and 4 -> 2, where 2 and 3 pointed
    round 2   hook: 2 -> 1, 3 -> 1, 4 -> 2   jump: 4 -> 1
    round 3   hook: 2 -> 1, 3 -> 1, 4 -> 1   jump: nothing moves, and no edge is left: one cluster, of which 1 stays

Each round halves all chains of pointers, and an end moves within its cluster, so none falls apart. When no other edge
is left and no pointer moves, every document points at the smallest of its cluster.
"""

from pathlib import Path

import numpy as np

from data_prep.clean.cleaner import HUGE
from data_prep.clean.grouped_hashes import RangeTask, Rows, distinct, first_of_each, joined, read_rows, write_rows
from data_prep.clean.near_duplicates import looked_up, sibling_path
from data_prep.execution.records import Counts

SIZES = {2: "2", 3: "3-4", 5: "5-8", 9: "9-32", 33: "33-1,000", 1001: "1,001-10,000", HUGE + 1: "10,001 or more"}
"""Bins in which clusters are counted by their documents, by the smallest number of each."""


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
