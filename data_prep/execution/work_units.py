"""Units of work: the parts of a build that are done once, in any order, by any worker.

A unit is a function and its argument. It reads files, writes files, and depends on nothing else, so units can be handed
to any number of workers and repeated at will. When a unit is finished, a record with the SHA-256 of its files is
stored; a build that is started again skips the units whose records and files are as they should be. A step of the build
is a list of units that need nothing of one another.

A corpus of terabytes has a million units. So units are made when they are handed out, their counts are added up as
they finish, and of each unit only the part that its step asks for is kept.

Function and argument are not part of a unit's identity: a record is found by step and name alone. Its *context* makes
that safe. It is a hash of the input and of every setting that the step depends on (`BuildState.context`), from which
the argument follows; the recorded versions stand for the code (`require_versions`). A record that was sealed with
another context is not opened, and its unit is done again.
"""

import ctypes
import os
import shutil
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from data_prep.config.build import BuildConfig
from data_prep.execution import records
from data_prep.execution.build_state import BuildState, require_folder, require_versions
from data_prep.execution.executors import Executor
from data_prep.execution.progress import Rate, UnitProgress
from megabert.foundation.errors import HaltedError, MegabertError
from megabert.settings.command_line.failures import as_user_error

RECORDS_PER_CHECK = 256
"""Records that a worker checks at a time, at most."""
FILES_PER_REMOVAL = 1000
"""Files that a worker deletes at a time."""
Item = TypeVar("Item", covariant=True)


class LazyList(Sequence[Item], Generic[Item]):
    """A list whose items are made each time that they are asked for."""

    def __init__(self, count: int, make: Callable[[int], Item]) -> None:
        """Take the number of items, and what makes one from its number."""
        self._count, self._make = count, make

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        """Make the item of a number, or a list of the items of a slice."""
        numbers = range(self._count)[index]
        return list(map(self._make, numbers)) if isinstance(index, slice) else self._make(numbers)


@dataclass(frozen=True)
class Unit:
    """One unit of work: a function of a module, its argument, and the place of its record, which identifies it."""

    root: Path
    """Folder of the build."""
    step: str
    """Step that the unit belongs to, such as ``tokens``: the name of the file of its records."""
    name: str
    """Name of the record, unique within the step."""
    function: Callable[[Any], tuple[list[Path], records.Counts]]
    """Writes files atomically; returns their paths, and counts for the manifest."""
    argument: Any
    """What ``function`` is called with."""
    versions: dict[str, str]
    """Packages that the build was begun with; a unit that is not finished needs the same ones."""
    context: str
    """What its record belongs to, as `json_files.seal` has it."""
    origin: str = ""
    """Name of its input, if a user knows it."""
    group: str = ""
    """Units whose counts are added up together, where a step wants several sums."""
    host: str = ""
    """The node that hands units out, which is named where another one fails."""

    def __str__(self) -> str:
        """Return a name of the unit, for an error."""
        return f"{self.step} {self.name}" + (f", {self.origin}" if self.origin else "")


class Results:
    """Outcome of the units of a step."""

    def __init__(self, units: int, keep: records.Keep | None) -> None:
        """Begin without a finished unit."""
        self.tally = records.Tally()
        self.kept: list[Any] = [None] * units if keep else []
        """Kept part of each unit, in the order of the units."""

    @property
    def counts(self) -> records.Counts:
        """Sum of what all units counted that belong to no group."""
        return self.tally.of()

    def take(self, checked: records.Checked) -> None:
        """Add units that are finished."""
        self.tally.merge(checked.tally)
        for number, kept in zip(checked.finished, checked.kept, strict=False):
            self.kept[number] = kept


class Done(NamedTuple):
    """Outcome of a unit, as its worker returns it."""

    step: str
    group: str
    record: bytes
    counts: records.Counts
    kept: Any


@dataclass(frozen=True)
class RunningBuild:
    """A running build: its folder, its configuration, and the executor that does the work."""

    folder: Path
    """Output folder."""
    config: BuildConfig
    """What to make."""
    executor: Executor
    """Does the units; entered already."""
    state: BuildState
    """The record of its input, its settings and the packages that it was begun with."""
    host: str = field(default_factory=socket.gethostname)
    """The node that hands units out."""

    def path(self, *parts: str) -> Path:
        """Return a path inside the build's folder."""
        return self.folder.joinpath(*parts)

    def unit(
        self,
        step: str,
        name: str,
        function: Callable[[Any], tuple[list[Path], records.Counts]],
        argument: Any,
        *,
        origin: str = "",
        group: str = "",
    ) -> Unit:
        """Return a unit of a step."""
        context, versions = self.state.context(step), self.state.versions
        return Unit(self.folder, step, name, function, argument, versions, context, origin, group, self.host)

    def units(
        self,
        step: str,
        function: Callable[[Any], tuple[list[Path], records.Counts]],
        count: int,
        task: Callable[[int], Any],
    ) -> "LazyList[Unit]":
        """Return units of a step, each named after the file that its task writes: the ``path`` of ``task(number)``."""

        def unit(number: int) -> Unit:
            argument = task(number)
            origin = getattr(argument, "origin", "")
            return self.unit(step, argument.path.stem, function, argument, origin=origin)

        return LazyList(count, unit)

    def run(
        self, title: str, units: Sequence[Unit], rate: Rate | None = None, keep: records.Keep | None = None
    ) -> Results:
        """Do the units that are not finished yet, and return what all of them came to.

        Args:
            title: Name of the step for its line of progress.
            units: Independent of each other.
            rate: Count that the line of progress tells per second.
            keep: Returns the part of each unit that is kept; a function of a module, for workers call it.
        """
        with UnitProgress(title, len(units), rate, self.executor.workers) as progress, ExitStack() as stack:
            results, left = self._check(units, keep, progress)
            opened: dict[str, records.StepRecords] = {}
            waiting = LazyList(len(left), lambda index: units[left[index]])
            # The executor calls `run_unit` on each unit: here, in its processes, or in other MPI ranks. Outcomes come
            # back one by one, in the order in which units end.
            for index, done in self.executor.run(partial(run_unit, keep=keep), waiting):
                if done.step not in opened:
                    opened[done.step] = stack.enter_context(records.StepRecords(self.folder, done.step))
                # Written after the unit's files, so a kill in between repeats it.
                opened[done.step].append(done.record)
                results.tally.add(done.counts, done.group)
                if keep:
                    results.kept[left[index]] = done.kept
                progress.advance(done.counts)
        release_before("")
        return results

    def finished(self, units: Sequence[Unit], keep: records.Keep | None = None) -> Results | None:
        """Return the outcome of units if all are finished and their files sound; else None."""
        results, left = self._check(units, keep)
        return None if left else results

    def remove(self, folder: Path) -> None:
        """Delete a folder of files that are not needed any more, if it is there."""
        names = os.listdir(folder) if folder.is_dir() else []
        # Shared among the workers: a parallel file system deletes many files at a time.
        starts = range(0, len(names) - FILES_PER_REMOVAL, FILES_PER_REMOVAL)
        parts = LazyList(len(starts), lambda number: names[starts[number] : starts[number] + FILES_PER_REMOVAL])
        for _ in self.executor.run(partial(remove_files, folder), parts):
            pass
        shutil.rmtree(folder, ignore_errors=True)

    def _check(
        self, units: Sequence[Unit], keep: records.Keep | None, progress: UnitProgress | None = None
    ) -> tuple[Results, list[int]]:
        """Return the outcome of the units that an earlier run has finished, and the numbers of the others."""
        results, is_left = Results(len(units), keep), np.ones(len(units), bool)
        stored: list[records.StoredRecord] = []
        # Units of a step are next to each other. Of one that has not begun, none has to be made to be looked up.
        ends = (units[0], units[-1]) if units else ()
        steps = {unit.step: records.StepRecords(self.folder, unit.step).read() for unit in ends}
        for number, unit in enumerate(units if len(steps) > 1 or any(steps.values()) else ()):
            if unit.step not in steps:
                steps[unit.step] = records.StepRecords(self.folder, unit.step).read()
            if (line := steps[unit.step].get(unit.name.encode())) is not None:
                stored.append(records.StoredRecord(number, unit.group, unit.context, line))
        # Files are looked at by the workers: a parallel file system answers many at a time.
        size = min(RECORDS_PER_CHECK, -(-len(stored) // (4 * self.executor.workers)) or 1)
        tasks = LazyList(
            -(-len(stored) // size),
            lambda index: records.CheckTask(self.folder, stored[size * index : size * (index + 1)], keep),
        )
        for _, checked in self.executor.run(records.check_records, tasks):
            results.take(checked)
            is_left[checked.finished] = False
            if progress is not None:
                progress.skip(len(checked.finished))
        return results, np.flatnonzero(is_left).tolist()


def remove_files(folder: Path, names: Sequence[str]) -> None:
    """Delete some files of a folder."""
    for name in names:
        with suppress(OSError):  # gone, or a folder; whatever is left goes with the folder
            (folder / name).unlink()


def run_unit(unit: Unit, keep: records.Keep | None = None) -> Done:
    """Do a unit and return its record, to be stored by the process that handed the unit out."""
    # Checked here and not at the start, so that a finished build needs no particular versions.
    require_versions(unit.root, unit.versions)
    release_before(unit.step)
    try:
        require_folder(unit.root)
        paths, counts = unit.function(unit.argument)
        outcome = records.outcome_of(unit.root, paths, counts)
    except (MegabertError, OSError) as error:
        here, known = socket.gethostname(), as_user_error(error)
        if here == unit.host or known is None:
            raise
        # A disk that fails is no refusal of the corpus, on this node as on the other one.
        kind = HaltedError if isinstance(error, OSError) else type(known)
        # Any path may be another file on another node, so the message says whose it is.
        raise kind(
            f"{known} This was on the node {here}, and {unit.host} hands the units out: check that both see the same "
            "input and the same --output."
        ) from error
    return Done(unit.step, unit.group, outcome.line(unit.name, unit.context), counts, keep(outcome) if keep else None)


@lru_cache(maxsize=1)
def release_before(step: str) -> None:
    """Return unused memory to the system, so that steps do not add up.

    It is called before each unit, and the cache of one call lets it act only when the process turns to another step:
    the next unit of a step needs the same memory again, and to get a page from the system again takes longer than most
    loops over it.

    Args:
        step: The step that comes next; "" after the last one.
    """
    release_memory()


def release_memory() -> None:
    """Return the memory that Arrow's and the C library's allocators keep unused."""
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it
    if trim is not None:
        trim(0)
