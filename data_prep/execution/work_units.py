"""Units of work: the parts of a build that are done once, in any order, by any worker.

A unit is a function and its argument. It reads files, writes files, and depends on nothing else, so units can be handed
to any number of workers and repeated at will. When a unit is finished, a record with the SHA-256 of what it wrote is
stored; a build that is started again skips the units whose records and files are as they should be. A step of the build
is a list of units that need nothing of one another.
"""

import ctypes
import json
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import pyarrow as pa
from pydantic import AfterValidator
from tqdm import tqdm

from data_prep.config import BuildConfig
from data_prep.execution.build_state import require_versions
from data_prep.execution.executors import Executor
from megabert.command_line.terminal import unfiltered
from megabert.errors import DataError
from megabert.schema import atomic_write, read_json, sha256_file

INTERVAL_S = 5.0
"""Between two lines of progress."""
QUIET_S = 20.0
"""Between two lines of progress while no unit is finished."""
WINDOW = 64
"""Units whose finish tells how fast the others will be."""
TEXTS = ("report", "examples")
"""Keys of counts that hold texts; all others hold numbers."""


def _require_numbers(counts: dict[str, Any]) -> dict[str, Any]:
    """Return counts that can be added up.

    Raises:
        ValueError: A value is no number.
    """
    for key, value in counts.items():
        if key not in TEXTS and not _holds_numbers(value):
            raise ValueError(f"{key} holds no number")
    return counts


def _holds_numbers(value: Any) -> bool:
    if isinstance(value, dict | list):
        return all(map(_holds_numbers, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int | float)


Counts = Annotated[dict[str, Any], AfterValidator(_require_numbers)]
"""What a unit counted: numbers, lists of numbers, texts, and mappings of these, which `add_counts` adds up."""


@dataclass(frozen=True)
class Unit:
    """One unit of work: a function of a module, its argument, and where it is recorded."""

    root: Path
    """Folder of the build."""
    step: str
    """Step that the unit belongs to, such as ``tokens``: the name of the folder of its records.

    Builds that an earlier version has begun are continued by these names, so they stay."""
    name: str
    """Name of the record, unique within the step."""
    function: Callable[[Any], tuple[list[Path], Counts]]
    """Writes files atomically; returns their paths, and counts for the manifest."""
    argument: Any
    """What ``function`` is called with."""
    versions: dict[str, str]
    """Packages that the build was begun with; a unit that is not finished needs the same ones."""
    origin: str = ""
    """What it reads, where a user knows it by name."""

    def __str__(self) -> str:
        """Return what the unit is, for an error."""
        return f"{self.step} {self.name}" + (f", {self.origin}" if self.origin else "")

    @property
    def record(self) -> Path:
        """File that says that the unit is finished."""
        return self.root / "work" / "records" / self.step / f"{self.name}.json"


@dataclass(frozen=True)
class Outcome:
    """What a finished unit wrote and counted: the content of its record."""

    files: dict[str, str]
    """SHA-256 of each file, by its path relative to the build's folder."""
    counts: Counts
    """What the unit counted."""
    was_skipped: bool = False
    """Whether the unit had been finished by an earlier run."""


class Rate(NamedTuple):
    """What of the units' counts is shown per second."""

    key: str
    """Key in the units' counts."""
    scale: float
    """Divides the count."""
    label: str
    """Unit of the quotient."""


BYTES = Rate("bytes", 1e6, "MB/s")
TOKENS = Rate("tokens", 1e6, "Mtokens/s")
INSTANCES = Rate("rows", 1e3, "k instances/s")


class Progress:
    """Counts finished units and shows how many there are, how fast they come, and the time left.

    On a terminal that is a bar, else a line every few seconds and one at the end; both on stderr.
    """

    def __init__(self, title: str, units: int, rate: Rate | None = None, workers: int = 1) -> None:
        """Begin a step.

        Args:
            title: Name of the step.
            units: How many units it has.
            rate: What to show per second.
            workers: How many units are done at a time.
        """
        self._title, self._units, self._rate, self._workers = title, units, rate, workers
        self._done = self._skipped = 0
        self._amount = 0.0
        self._start = self._shown = time.monotonic()
        self._finishes: deque[float] = deque(maxlen=WINDOW + 4 * workers)
        # With `disable=None` the bar is for terminals only.
        form = "{desc} |{bar}|"
        text = self._text(self._start)
        file = unfiltered(sys.stderr)
        self._bar = tqdm(desc=text, total=units, bar_format=form, dynamic_ncols=True, file=file, disable=None)
        # A unit may take minutes: without a thread nothing would move meanwhile.
        self._lock, self._is_over = threading.Lock(), threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the step; one that failed leaves its last line as it is."""
        if kind is None:
            self.close()
        self._is_over.set()

    def advance(self, counts: dict[str, float], *, was_skipped: bool) -> None:
        """Count one finished unit."""
        now = time.monotonic()
        with self._lock:
            self._done += 1
            self._skipped += was_skipped
            if not was_skipped:
                self._amount += counts.get(self._rate.key, 0) if self._rate else 0
                if self._done - self._skipped >= self._workers:
                    self._finishes.append(now)
            self._bar.set_description_str(self._text(now), refresh=False)
            self._bar.update()
            self._print_after(INTERVAL_S, now)

    def close(self) -> None:
        """Show the final counts."""
        self._is_over.set()
        with self._lock:
            text = self._text(time.monotonic())
            if self._bar.disable:
                print(text, file=sys.stderr, flush=True)
            self._bar.set_description_str(text, refresh=False)
            self._bar.close()

    def _beat(self) -> None:
        while not self._is_over.wait(1):
            with self._lock:
                now = time.monotonic()
                self._bar.set_description_str(self._text(now))
                self._print_after(QUIET_S, now)

    def _print_after(self, seconds: float, now: float) -> None:
        if self._bar.disable and now - self._shown >= seconds:
            self._shown = now
            print(self._text(now), file=sys.stderr, flush=True)

    def _text(self, now: float) -> str:
        parts = [f"{self._title}: {self._done}/{self._units} units"]
        if self._skipped:
            parts.append(f"{self._skipped} done before")
        elapsed = max(now - self._start, 1e-9)
        if self._rate and self._amount:
            parts.append(f"{self._amount / elapsed / self._rate.scale:,.1f} {self._rate.label}")
        # The time left is estimated from the latest units, and from none before each worker has finished one: while
        # those are done, workers start and loops are compiled. Units of an earlier run are only checked, so they say
        # nothing about the others.
        counted = len(self._finishes) - 1
        if counted >= self._workers and self._done < self._units:
            left = (self._finishes[-1] - self._finishes[0]) / counted * (self._units - self._done)
            parts.append(f"{tqdm.format_interval(left)} left")
        return ", ".join([*parts, f"{elapsed:.1f} s"])


@dataclass(frozen=True)
class Build:
    """A build on its way: where it writes, what it makes, and who does the work."""

    folder: Path
    """Output folder."""
    config: BuildConfig
    """What to make."""
    executor: Executor
    """Does the units; entered already."""
    versions: dict[str, str]
    """Packages that the build was begun with."""

    def path(self, *parts: str) -> Path:
        """Return a path inside the build's folder."""
        return self.folder.joinpath(*parts)

    def unit(
        self,
        step: str,
        name: str,
        function: Callable[[Any], tuple[list[Path], Counts]],
        argument: Any,
        *,
        origin: str = "",
    ) -> Unit:
        """Return a unit of a step."""
        return Unit(self.folder, step, name, function, argument, self.versions, origin)

    def run(self, title: str, units: Sequence[Unit], rate: Rate | None = None) -> list[Outcome]:
        """Do the units that are not finished yet, and return the outcomes of all in the order of ``units``.

        Args:
            title: Name of the step for its line of progress.
            units: Independent of each other.
            rate: What the line of progress tells per second.
        """
        outcomes: dict[int, Outcome] = {}
        # Outcomes come in any order; sorting them here makes the result independent of the workers.
        with Progress(title, len(units), rate, self.executor.workers) as progress:
            for index, outcome in self.executor.run(run_unit, units):
                outcomes[index] = outcome
                progress.advance(outcome.counts, was_skipped=outcome.was_skipped)
        release_before("")
        return [outcomes[index] for index in range(len(units))]


def run_unit(unit: Unit) -> Outcome:
    """Do a unit unless it is finished. Its record is written after its files, so a kill in between repeats it."""
    done = finished(unit)
    if done is not None:
        return done
    # Checked here and not at the start, so that a finished build needs no particular versions.
    require_versions(unit.root, unit.versions)
    release_before(unit.step)
    paths, counts = unit.function(unit.argument)
    files = {str(path.relative_to(unit.root)): sha256_file(path) for path in paths}
    atomic_write(unit.record, json.dumps({"files": files, "counts": counts}, sort_keys=True))
    return Outcome(files, counts)


@lru_cache(maxsize=1)
def release_before(step: str) -> None:
    """Return the memory that Arrow's and the C library's allocators keep unused, so that steps do not add up.

    It is called before each unit, and the cache of one call lets it act only when the process turns to another step:
    the next unit of a step needs the same memory again, and a page that the system has to provide again costs more than
    many a loop over it.

    Args:
        step: The step that comes next; "" after the last one.
    """
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it
    if trim is not None:
        trim(0)


def finished(unit: Unit) -> Outcome | None:
    """Return the recorded outcome if the unit's files are there with the recorded SHA-256, else None."""
    try:
        outcome = read_json(unit.record, Outcome, remedy="The unit is done again.")
    except DataError:  # no record, or a damaged one
        return None
    for name, digest in outcome.files.items():
        path = unit.root / name
        if not path.is_file() or sha256_file(path) != digest:
            return None
    return replace(outcome, was_skipped=True)


def all_finished(units: Sequence[Unit], executor: Executor) -> bool:
    """Return whether every unit is finished, its files verified; the workers share the hashing."""
    # Looking for the records first is cheap, and tells most unfinished steps from finished ones.
    if not all(unit.record.is_file() for unit in units):
        return False
    return all(outcome is not None for _, outcome in executor.run(finished, units))


def add_counts(outcomes: Sequence[Outcome]) -> Counts:
    """Sum the counts of units: numbers are added, lists element by element, mappings key by key."""
    total: Counts = {}
    for outcome in outcomes:
        _add_to(total, outcome.counts)
    return total


def _add_to(total: dict[str, Any], counts: dict[str, Any]) -> None:
    # In place: a copy of the sum for each of a million units would take time with the square of their number.
    for key, value in counts.items():
        earlier = total.get(key)
        if earlier is None:
            total[key] = deepcopy(value) if isinstance(value, dict | list) else value
        elif isinstance(earlier, dict) and isinstance(value, dict):
            _add_to(earlier, value)
        elif isinstance(earlier, list) and isinstance(value, list) and len(earlier) == len(value):
            total[key] = [a + b for a, b in zip(earlier, value, strict=True)]
        elif isinstance(earlier, dict | list) or isinstance(value, dict | list):
            raise DataError(
                f"Two units counted {key} over different bins: their records are damaged. Build in a new folder."
            )
        else:
            total[key] = earlier + value
