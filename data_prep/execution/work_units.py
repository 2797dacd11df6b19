"""Units of work that are done once: run, record with the SHA-256 of what they wrote, skip when run again."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_prep.execution.executors import Executor
from data_prep.execution.memory import release_unused
from data_prep.execution.progress import Progress
from data_prep.execution.versions import require_versions
from megabert.errors import DataError
from megabert.schema import atomic_write, sha256_file

Counts = dict[str, Any]


@dataclass(frozen=True)
class Unit:
    """One piece of work: a module-level function, what it takes, and where it leaves its record."""

    root: Path
    """Folder of the build."""
    stage: str
    """Such as ``tokens``."""
    name: str
    """Unique within the stage; names the record."""
    function: Callable[[Any], tuple[list[Path], Counts]]
    """Writes files atomically; returns their paths and counts for the manifest."""
    argument: Any
    """Given to ``function``."""
    versions: dict[str, str] = field(default_factory=dict)
    """Packages that the build was begun with; a unit that is not finished needs the same ones."""

    @property
    def record(self) -> Path:
        """Where the finished unit is recorded."""
        return self.root / "work" / "records" / self.stage / f"{self.name}.json"


@dataclass(frozen=True)
class Outcome:
    """A finished unit."""

    files: dict[str, str] = field(default_factory=dict)
    """SHA-256 by path relative to the build's folder."""
    counts: Counts = field(default_factory=dict)
    """What the unit counted."""
    was_skipped: bool = False
    """Whether it had been done before."""


def finished(unit: Unit) -> Outcome | None:
    """Return the recorded outcome if the unit's files are there with the recorded SHA-256, else None."""
    try:
        values = json.loads(unit.record.read_bytes())
        files, counts = values["files"], values["counts"]
    except (OSError, ValueError, KeyError):
        return None
    for name, digest in files.items():
        path = unit.root / name
        if not path.is_file() or sha256_file(path) != digest:
            return None
    return Outcome(files, counts, was_skipped=True)


def run_unit(unit: Unit) -> Outcome:
    """Do a unit unless it is finished; the record is written after its files."""
    done = finished(unit)
    if done is not None:
        return done
    require_versions(unit.root, unit.versions)
    release_unused(unit.stage)
    paths, counts = unit.function(unit.argument)
    files = {str(path.relative_to(unit.root)): sha256_file(path) for path in paths}
    atomic_write(unit.record, json.dumps({"files": files, "counts": counts}, sort_keys=True))
    return Outcome(files, counts)


def run_stage(units: Sequence[Unit], executor: Executor, progress: Progress) -> list[Outcome]:
    """Run all units of a stage and return their outcomes in the order of ``units``."""
    outcomes: list[Outcome | None] = [None] * len(units)
    for index, outcome in executor.run(run_unit, units):
        outcomes[index] = outcome
        progress.advance(outcome.counts, was_skipped=outcome.was_skipped)
    progress.close()
    release_unused("")
    return [outcome for outcome in outcomes if outcome is not None]


def all_finished(units: Sequence[Unit], executor: Executor) -> list[Outcome] | None:
    """Return the outcomes if every unit is finished and verified, else None."""
    if not all(unit.record.is_file() for unit in units):
        return None
    found: list[Outcome | None] = [None] * len(units)
    for index, outcome in executor.run(finished, units):
        found[index] = outcome
    return None if None in found else [outcome for outcome in found if outcome is not None]


def add_counts(outcomes: Sequence[Outcome]) -> Counts:
    """Sum the counts of units: numbers are added, lists element by element, mappings key by key."""
    total: Counts = {}
    for outcome in outcomes:
        total = _add(total, outcome.counts)
    return total


def _add(left: Any, right: Any) -> Any:
    if isinstance(left, dict):
        return {
            key: _add(left[key], right[key]) if key in left and key in right else left.get(key, right.get(key))
            for key in [*left, *(key for key in right if key not in left)]
        }
    if isinstance(left, list):
        if len(left) != len(right):
            raise DataError("Two units counted over different bins: their records are damaged. Build in a new folder.")
        return [a + b for a, b in zip(left, right, strict=True)]
    return left + right
