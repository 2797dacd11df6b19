"""Records of finished units: what each wrote and counted. A build that is started again reads them and goes on.

A step has one file, ``work/records/STEP.jsonl``, with a line for each unit that is finished. The process that hands out
the units appends the lines, so there are as many files as steps, however large the corpus; a build that is started
again reads them at one go, and has its workers check them. A line that was cut by a crash is one of a unit that was not
finished. Of several lines with one name the last one counts.

The counts of a million units become one by adding them up as units finish, in constant memory (`Tally`).
"""

import errno
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

from pydantic import AfterValidator, NonNegativeInt

from data_prep.extract.opening import EXAMPLES
from megabert.errors import DataError
from megabert.files import NO_SPACE, atomic_path, disk_full, sha256_file
from megabert.json_files import parse_json, read_json

SYNC_S = 2.0
"""Between two moments at which the records of a step are made durable."""
NAME = b'{"name": "'
UNKNOWN_NS = -1
"""Time of a file's last change where an earlier version of megabert did not record it."""
TEXTS = ("report", "examples")
"""Keys of counts that hold texts; all others hold numbers."""
MOST = 1 << 56
"""More than a unit can count; a larger number is damage."""


def _require_numbers(counts: dict[str, Any]) -> dict[str, Any]:
    """Return counts that can be added up.

    Raises:
        ValueError: A value is no number, or none that can be counted.
    """
    for key, value in counts.items():
        if key not in TEXTS and not _holds_numbers(value):
            raise ValueError(f"{key} holds no number")
    return counts


def _holds_numbers(value: Any) -> bool:
    if isinstance(value, dict | list):
        return all(map(_holds_numbers, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int | float) and 0 <= value <= MOST


Counts = Annotated[dict[str, Any], AfterValidator(_require_numbers)]
"""What a unit counted: numbers, lists of numbers, texts, and mappings of these, which a `Tally` adds up."""


class Tally:
    """Adds up the counts of units: numbers are added, lists element by element, mappings key by key.

    The sum is the same in any order. Of the examples of a rule, which are named in the order of the input, only the
    first few are kept: all of those of a large corpus would fill the memory of one process.
    """

    def __init__(self, groups: dict[str, Counts] | None = None) -> None:
        """Begin with nothing, or with the sums of some units by group."""
        self.groups: dict[str, Counts] = groups or {}
        """Sum of each group of units, keys in the order in which they came."""

    def add(self, counts: Counts, group: str = "") -> None:
        """Add the counts of one unit, or of several that are added up already."""
        total = self.groups.setdefault(group, {})
        examples = counts.get("examples")
        _add_to(total, counts)
        for rule in examples or ():
            named = total["examples"][rule]
            for name in sorted(named)[EXAMPLES:]:
                del named[name]

    def merge(self, other: "Tally") -> None:
        """Add all that another tally has."""
        for group, counts in other.groups.items():
            self.add(counts, group)

    def of(self, group: str = "") -> Counts:
        """Return the sum of a group, its keys sorted, so that nothing tells which unit was finished first."""
        return _sorted(self.groups.get(group, {}))


def add_counts(parts: Iterable[Counts]) -> Counts:
    """Return the sum of counts."""
    tally = Tally()
    for counts in parts:
        tally.add(counts)
    return tally.of()


def _sorted(value: Any) -> Any:
    return {key: _sorted(value[key]) for key in sorted(value)} if isinstance(value, dict) else value


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


class FileRecord(NamedTuple):
    """A file as a unit wrote it."""

    bytes: NonNegativeInt
    modified_ns: int
    """Time of the last change."""
    sha256: str


@dataclass(frozen=True)
class Outcome:
    """What a finished unit wrote and counted: the content of its record."""

    files: dict[str, FileRecord]
    """The files, by their paths relative to the build's folder."""
    counts: Counts
    """What the unit counted."""

    def line(self, name: str) -> bytes:
        """Return the record of a unit of this name."""
        return json.dumps({"name": name, "files": self.files, "counts": self.counts}).encode() + b"\n"


Keep = Callable[[Outcome], Any]
"""What a step needs of each unit besides the sum of all counts, such as the size of its file."""


def outcome_of(root: Path, paths: Sequence[Path], counts: Counts) -> Outcome:
    """Return what a unit wrote, with hashes.

    Args:
        root: Folder of the build.
        paths: The files, finished.
        counts: What the unit counted.
    """

    def record(path: Path) -> FileRecord:
        status = path.stat()
        return FileRecord(status.st_size, status.st_mtime_ns, sha256_file(path))

    return Outcome({str(path.relative_to(root)): record(path) for path in paths}, counts)


def _is_sound(path: Path, record: FileRecord) -> bool:
    """Whether a file is as it was recorded: by size and time of change, and where these differ by its hash."""
    try:
        status = path.stat()
        if record.modified_ns != UNKNOWN_NS:
            if status.st_size != record.bytes:
                return False
            if status.st_mtime_ns == record.modified_ns:
                return True
        return sha256_file(path) == record.sha256
    except (OSError, DataError):
        return False


class CheckTask(NamedTuple):
    """Some records to check."""

    root: Path
    """Folder of the build."""
    lines: list[tuple[int, str, bytes]]
    """Number of the unit in its step, the group that its counts are added to, and its record."""
    keep: Keep | None
    """Names what the step needs of each unit."""

    def __str__(self) -> str:
        """Return what it is, for an error."""
        return "the check of finished units"


class Checked(NamedTuple):
    """Which of some units are finished, and what they counted."""

    finished: list[int]
    kept: list[Any]
    """One for each of ``finished``, where something is kept."""
    tally: Tally


def check_records(task: CheckTask) -> Checked:
    """Find the units whose files are there and sound."""
    checked = Checked([], [], Tally())
    for number, group, line in task.lines:
        outcome = _parsed(line)
        if outcome is None or not all(_is_sound(task.root / name, file) for name, file in outcome.files.items()):
            continue
        if task.keep is not None:
            try:
                checked.kept.append(task.keep(outcome))
            except (AttributeError, LookupError, TypeError, ValueError):  # counts have no types: a damaged record
                continue
        checked.finished.append(number)
        checked.tally.add(outcome.counts, group)
    return checked


def _parsed(line: bytes) -> Outcome | None:
    try:
        return parse_json(line, Outcome, where="record", remedy="The unit is done again.")
    except DataError:
        return None


class StepRecords:
    """The records of one step: read once, then appended to."""

    def __init__(self, root: Path, step: str) -> None:
        """Name the file; nothing is read yet."""
        self._path = root / "work" / "records" / f"{step}.jsonl"
        self._descriptor = -1
        self._synced = time.monotonic()

    def read(self) -> dict[bytes, bytes]:
        """Return the last line of each unit by its name; lines may be damaged behind the name.

        Raises:
            DataError: The file is there and cannot be read.
        """
        _take_over_files(self._path)
        try:
            with open(self._path, "rb") as lines:
                return {line[len(NAME) : line.find(b'"', len(NAME))]: line for line in lines if line.startswith(NAME)}
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise DataError(f"{self._path}: {error.strerror}. Delete it: its units are done again.") from None

    def append(self, line: bytes) -> None:
        """Add the record of a unit whose files are durable.

        Raises:
            DataError: The disk is full.
        """
        try:
            if self._descriptor < 0:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
                line = b"\n" + line  # whatever a crash has left there ends here
            if os.write(self._descriptor, line) < len(line):  # there was room for a part of it
                raise OSError(errno.ENOSPC, "No space left on device")
            if time.monotonic() - self._synced > SYNC_S:
                os.fsync(self._descriptor)
                self._synced = time.monotonic()
        except OSError as error:
            if error.errno in NO_SPACE:
                raise disk_full(self._path) from error
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Make all records durable."""
        if self._descriptor >= 0:
            with suppress(OSError):  # on a full disk units are done again
                os.fsync(self._descriptor)
            os.close(self._descriptor)


def _take_over_files(path: Path) -> None:
    """Append the records of earlier versions of megabert, which wrote a file for each unit into a folder."""
    folder = path.with_suffix("")
    if not folder.is_dir():
        return

    def lines() -> Iterator[bytes]:
        for file in sorted(folder.glob("*.json")):
            with suppress(DataError):
                earlier = read_json(file, _EarlierOutcome, remedy="The unit is done again.")
                files = {name: FileRecord(0, UNKNOWN_NS, digest) for name, digest in earlier.files.items()}
                yield Outcome(files, earlier.counts).line(file.stem)

    with atomic_path(path) as temporary, open(temporary, "wb") as stream:
        stream.writelines(lines())
        if path.is_file():  # taken over before, by a build that was killed here
            stream.write(path.read_bytes())
    shutil.rmtree(folder)


@dataclass(frozen=True)
class _EarlierOutcome:
    """The record of a unit in a file of its own."""

    files: dict[str, str]
    """SHA-256 of each file."""
    counts: Counts
