"""Records of finished units: the files and counts of each. A build that is started again reads them and continues.

A step has one file, ``work/records/STEP.jsonl``, with a line for each unit that is finished. The process that hands out
the units appends the lines, so there are as many files as steps, however large the corpus; a build that is started
again reads them at one go, and has its workers check them: each line by the hash that it begins with (`seal`), and
each file that it names by the file's hash. A line that was cut by a crash is one of a unit that was not finished. Of
several lines with one name the last one counts.

A unit counts the text that it could not use, with the first few messages of each kind (`Problems`). The counts of a
million units become one by adding them up as units finish, in constant memory (`Tally`).
"""

import errno
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

from pydantic import AfterValidator, NonNegativeInt

from megabert.foundation.errors import DataError, HaltedError, without_secrets
from megabert.foundation.files import open_in_place, open_to_read, sha256_file
from megabert.foundation.full_disk import NO_SPACE, disk_full
from megabert.foundation.json_files import START, seal, unseal

MAX_DOCUMENT_BYTES = 32 << 20
"""Longer documents are left out and counted: they would take a worker's memory."""
EXAMPLES = 3
"""Messages of each kind that are shown."""
MAX_EXAMPLE_CHARACTERS = 300
SYNC_S = 2.0
"""Between two moments at which the records of a step are made durable."""
NAME = b'"name": "'
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
"""Counts of a unit: numbers, lists of numbers, texts, and mappings of these, which a `Tally` adds up."""


class Problems:
    """Takes note of what cannot be used of one chunk."""

    def __init__(self, *, is_strict: bool = True) -> None:
        """Start empty.

        Args:
            is_strict: Whether a document that cannot be read is an error.
        """
        self.is_strict = is_strict
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}
        self.lost_bytes = 0
        """Stored bytes that follow the damage in files."""

    @property
    def is_cut(self) -> bool:
        """Whether the file ended too early or in damage."""
        return "cut_files" in self.counts or "damaged_files" in self.counts

    def lose_end(self, kind: str, message: str, lost_bytes: int = 0) -> None:
        """Count a file whose end cannot be read, and the stored bytes that are lost with it, as far as they are there.

        Raises:
            DataError: Where the build may not lose documents (``max_bad_share`` is 0).
        """
        self.require(kind, message, "Fetch the file again, or use what can be read with --max-bad-share above 0.")
        self.lost_bytes += lost_bytes

    def count(self, kind: str) -> None:
        """Count something that is no problem but should be known, such as a redirect."""
        self.counts[kind] += 1

    def add(self, kind: str, message: str) -> None:
        """Count a problem that is never fatal, such as a document that is too long; remember the first messages."""
        self.count(kind)
        self.give_example(kind, message)

    def oversized(self, path: str, where: str) -> None:
        """Count a document above ``MAX_DOCUMENT_BYTES``."""
        self.add("oversized_documents", f"{path}: the document {where} is above {MAX_DOCUMENT_BYTES >> 20} MiB")

    def give_example(self, kind: str, message: str) -> None:
        """Remember a message if it is one of the first of its kind."""
        if self.lacks_examples(kind):
            self.examples.setdefault(kind, []).append(without_secrets(message)[:MAX_EXAMPLE_CHARACTERS])

    def lacks_examples(self, kind: str) -> bool:
        """Return whether another message of a kind would be remembered."""
        return len(self.examples.get(kind, ())) < EXAMPLES

    def shows(self, kind: str) -> bool:
        """Return whether the next problem of a kind would be shown."""
        return self.is_strict or self.lacks_examples(kind)

    def require(self, kind: str, message: str, remedy: str) -> None:
        """Count a document that cannot be read.

        Raises:
            DataError: Where the build may not drop documents (``max_bad_share`` is 0).
        """
        # JSON can name half of a surrogate pair, in a key too, and no file of UTF-8 can hold the message then.
        message = message.encode("utf-8", "backslashreplace").decode()
        if self.is_strict:
            raise DataError(f"{message}. {remedy}")
        self.add(kind, message)


class Tally:
    """Adds up the counts of units: numbers are added, lists element by element, mappings key by key.

    The sum is the same in any order. Of the examples of a rule, which are named in the order of the input, only the
    first few are kept: all examples of a large corpus would fill the memory of one process.
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
        else:
            total[key] = _sum(key, earlier, value)


def _sum(key: str, a: Any, b: Any) -> Any:
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [_sum(key, *pair) for pair in zip(a, b, strict=True)]
    if not isinstance(a, int | float) or not isinstance(b, int | float):
        raise DataError(
            f"Two units counted {key} over different bins: their records are damaged. Build in a new folder."
        )
    return a + b


class FileRecord(NamedTuple):
    """A file as a unit wrote it."""

    bytes: NonNegativeInt
    sha256: str


@dataclass(frozen=True)
class Outcome:
    """Files and counts of a finished unit: the content of its record."""

    files: dict[str, FileRecord]
    """The files, by their paths relative to the build's folder."""
    counts: Counts
    """Counts of the unit."""

    def line(self, name: str, context: str) -> bytes:
        """Return the record of a unit of this name, sealed."""
        return seal({"name": name, "files": self.files, "counts": self.counts}, context) + b"\n"


Keep = Callable[[Outcome], Any]
"""Returns the part of each unit's outcome that its step needs besides the sum of all counts."""


def outcome_of(root: Path, paths: Sequence[Path], counts: Counts) -> Outcome:
    """Return the outcome of a unit, with the hashes of its files.

    Args:
        root: Folder of the build.
        paths: The files, finished.
        counts: Counts of the unit.
    """
    files = {str(path.relative_to(root)): FileRecord(path.stat().st_size, sha256_file(path)) for path in paths}
    return Outcome(files, counts)


def _is_sound(path: Path, record: FileRecord) -> bool:
    """Whether a file is as it was recorded."""
    try:
        return path.stat().st_size == record.bytes and sha256_file(path) == record.sha256
    except (OSError, DataError):
        return False


class StoredRecord(NamedTuple):
    """The record of a unit as it was read."""

    number: int
    """Number of the unit in its step."""
    group: str
    """The group that its counts are added to."""
    context: str
    """Context of its seal (`json_files.seal`)."""
    line: bytes


class CheckTask(NamedTuple):
    """Some records to check."""

    root: Path
    """Folder of the build."""
    records: list[StoredRecord]
    keep: Keep | None
    """Takes the part that the step needs of each unit."""

    def __str__(self) -> str:
        """Return a name for an error."""
        return "the check of finished units"


class Checked(NamedTuple):
    """The finished ones of some units, and their counts."""

    finished: list[int]
    kept: list[Any]
    """One for each of ``finished``, where something is kept."""
    tally: Tally


def check_records(task: CheckTask) -> Checked:
    """Find the units whose files are there and sound."""
    checked = Checked([], [], Tally())
    for number, group, context, line in task.records:
        try:
            outcome = unseal(line, Outcome, context, where="record", remedy="The unit is done again.")
            if not all(_is_sound(task.root / name, file) for name, file in outcome.files.items()):
                continue
            if task.keep is not None:
                checked.kept.append(task.keep(outcome))
        except (DataError, AttributeError, LookupError, TypeError, ValueError):  # damaged; counts have no types
            continue
        checked.finished.append(number)
        checked.tally.add(outcome.counts, group)
    return checked


class StepRecords:
    """The records of one step: read once, then appended to."""

    def __init__(self, root: Path, step: str) -> None:
        """Name the file; nothing is read yet."""
        self._path = root / "work" / "records" / f"{step}.jsonl"
        self._descriptor = -1
        self._synced = time.monotonic()

    def read(self) -> dict[bytes, bytes]:
        """Return the last line of each unit by its name; of a damaged line, both may be anything.

        Raises:
            DataError: The file is there and cannot be read.
        """
        first = START + len(NAME)
        try:
            with open_to_read(self._path) as lines:
                return {line[first : line.find(b'"', first)]: line for line in lines if line[START:first] == NAME}
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise HaltedError(f"{self._path}: {error.strerror}. Delete it: its units are done again.") from None

    def append(self, line: bytes) -> None:
        """Add the record of a unit whose files are durable.

        Raises:
            DataError: The disk is full.
        """
        try:
            if self._descriptor < 0:
                self._descriptor = open_in_place(self._path, os.O_WRONLY | os.O_APPEND)
                line = b"\n" + line  # whatever a crash has left there ends here
            if os.write(self._descriptor, line) < len(line):  # there was room for a part of it
                raise OSError(errno.ENOSPC, "No space left on device")
            if time.monotonic() - self._synced > SYNC_S:
                os.fsync(self._descriptor)
                self._synced = time.monotonic()
        except OSError as error:
            if error.errno in NO_SPACE:
                raise disk_full(self._path, error) from error
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Make all records durable."""
        if self._descriptor >= 0:
            with suppress(OSError):  # on a full disk units are done again
                os.fsync(self._descriptor)
            os.close(self._descriptor)
