"""The part of step 1 that finds clusters of near duplicates, from the keys of each chunk's documents.

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

from data_prep.clean.components import count_members, hook, jump, write_fates
from data_prep.clean.grouped_hashes import CHUNK_NAME, HASHES_PER_RANGE, HashPlan, RangeTask
from data_prep.clean.near_duplicates import gather_fates, join_keys, merge_keys
from data_prep.execution.records import Counts
from data_prep.execution.work_units import RunningBuild

KEYS, EDGES = CHUNK_NAME, "{:06d}-edges.npy"
MERGED, MERGED_EDGES, JOINED = "merged-{:07d}.npy", "merged-{:07d}-edges.npy", "joined-{:06d}.npy"
MEMBERS, SETTLED, GATHERED = "members-{:05d}.npy", "settled-{:05d}.npy", "fates-{:05d}.npy"
HOOKED, LEFT, JUMPED = "hook-{:03d}-{{:05d}}.npy", "hook-{:03d}-{{:05d}}-left.npy", "jump-{:03d}-{{:05d}}.npy"
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
