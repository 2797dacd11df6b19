"""The part of step 1 that finds paragraphs which occur in several chunks, from hashes of each chunk's paragraphs."""

from collections.abc import Callable
from pathlib import Path

from data_prep.clean.paragraphs import ParagraphPlan, ParagraphTask, find_copies, gather_copies, merge_hashes
from data_prep.execution.records import Counts
from data_prep.execution.work_units import Build, LazyList, Unit

HASHES_NAME = "{:06d}.npy"
"""Name of the hashes of a chunk's paragraphs."""


def find_paragraph_copies(build: Build, plan: ParagraphPlan) -> Callable[[int], Path]:
    """Find the paragraphs that documents of each chunk lose to another document.

    Args:
        build: The build, in whose ``work/paragraphs`` the hashes of each chunk are.
        plan: How the hashes are parted.

    Returns:
        What names the file that knows them of a chunk.
    """
    folder = build.path("work", "paragraphs")

    def gathered(group: int) -> Path:
        return folder / f"copies-{group:05d}.npy"

    def unit(function: Callable[[ParagraphTask], tuple[list[Path], Counts]], task: ParagraphTask) -> Unit:
        return build.unit("paragraphs", task.path.stem, function, task)

    def merge(index: int) -> Unit:
        group, block = divmod(index, plan.blocks)
        path = folder / f"merged-{group:05d}-{block:05d}.npy"
        return unit(merge_hashes, ParagraphTask(folder, HASHES_NAME, plan.chunks_of(group), block, plan.blocks, path))

    def find(number: int) -> Unit:
        source, path = f"merged-{{:05d}}-{plan.block_of(number):05d}.npy", folder / f"found-{number:05d}.npy"
        return unit(find_copies, ParagraphTask(folder, source, range(plan.groups), number, plan.ranges, path))

    def gather(group: int) -> Unit:
        chunks, numbers = plan.chunks_of(group), range(plan.ranges)
        task = ParagraphTask(folder, "found-{:05d}.npy", numbers, chunks.start, len(chunks), gathered(group))
        return unit(gather_copies, task)

    build.run("merge paragraphs", LazyList(plan.groups * plan.blocks, merge))
    build.run("duplicate paragraphs", LazyList(plan.ranges, find))
    build.run("gather paragraphs", LazyList(plan.groups, gather))
    return lambda chunk: gathered(chunk // plan.chunks_a_group)
