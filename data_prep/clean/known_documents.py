"""Documents of earlier builds that a build leaves out (``exclude``), and hashes by which others leave out its own.

A build keeps ``work/hashes``: 64-bit hashes in ascending order, in files of equal ranges. They are the hashes of the
texts of its documents, held-out ones among them; with the rule ``duplicate_paragraphs``, also of the texts before that
rule; with the rule ``near_duplicates``, also the keys of all documents that it compared. So a document is known by its
text, and a near copy by any key that it shares with a document or with a copy that was dropped.

The files of the earlier builds are part of the input: their SHA-256 are in ``build.json``, so that a build that
continues knows the documents that it knew when it began.
"""

import hashlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.clean.grouped_hashes import HASHES_PER_RANGE, RangeTask, Rows, read_rows, write_rows
from data_prep.clean.near_duplicates import Signature
from data_prep.config.build import BuildConfig
from data_prep.documents.arrow_files import open_mapped
from data_prep.documents.document_set import hash_range, hash_text, rows_in_range
from data_prep.documents.token_files import HASHES, part_of
from data_prep.execution.build_state import STATE_NAME, BuildState, InputRecord, read_state
from data_prep.execution.changes import STEPS
from data_prep.execution.records import Counts, FileRecord, Outcome, StepRecords
from data_prep.execution.work_units import RunningBuild
from megabert.foundation.errors import ConfigError, DataError
from megabert.foundation.json_files import unseal
from megabert.settings.config import loading
from megabert.tokens.shards.folder import MANIFEST_NAME

FOLDER, NAME = STEPS["hashes"].output, "{:05d}-of-{:05d}.npy"
FIRST_READING = "work/near/joined-{:06d}-keys.npy", "work/paragraphs/found-{:05d}-texts.npy"
"""Files of ranges that the first reading of the text leaves, if there is one."""
OVER_CORPUS = "near_duplicate", "min_paragraph_characters", "rules"
"""Beginnings of the settings of cleaning under which another setting alone hides no document; rules are compared."""


def write_hashes(build: RunningBuild, buckets: dict[str, int], documents: int) -> None:
    """Write the hashes of the documents of a build, once its buckets are filled and while ``work/near`` is there.

    Args:
        build: The build.
        buckets: Number of buckets of each split.
        documents: Number of documents in all of them.
    """
    counts = {name: _count_files(build.folder, name) for name in FIRST_READING}
    ranges = max(1, sum(counts.values()) - (-documents // HASHES_PER_RANGE))
    counts |= {f"documents/{split}-{{:05d}}.arrow": number for split, number in buckets.items()}
    sources = tuple(item for item in counts.items() if item[1])

    def task(number: int) -> RangeTask:
        return RangeTask(sources, build.folder, number, ranges, build.path(FOLDER, NAME.format(number, ranges)))

    build.run("hashes", build.units("hashes", write_range, ranges, task))


def _count_files(folder: Path, name: str) -> int:
    return next(number for number in count() if not (folder / name.format(number)).exists())


def write_range(task: RangeTask) -> tuple[list[Path], Counts]:
    """Write the different hashes of a range that all sources have, ascending: shape (1, n)."""
    low, high = hash_range(task.number, task.parts)
    parts = []
    for name, files in task.sources:
        for number in range(part_of(low, HASHES, files), part_of(high - 1, HASHES, files) + 1):
            hashes = _hashes_in(task.folder / name.format(number))
            parts.append(hashes[rows_in_range(hashes, low, high)])
    return [write_rows(task.path, np.unique(np.concatenate(parts))[None])], {}


def _hashes_in(path: Path) -> Rows:
    """Return the hashes of a file that a step before has written, mapped."""
    if path.suffix == ".npy":
        return read_rows(path, 1)[0]
    reader = open_mapped(path)  # a bucket; one without documents has no batch
    return np.asarray(reader.get_batch(0)["document_hash"] if reader.num_record_batches else [], np.uint64)


class KnownDocuments:
    """Tells which documents the builds that are left out have."""

    def __init__(self, config: BuildConfig) -> None:
        """Find the files of the builds, which `require_usable` has checked."""
        self._series: list[tuple[str, int]] = []
        for folder in config.exclude:
            files = len(list(Path(folder, FOLDER).glob("*.npy")))
            self._series.append((str(Path(folder, FOLDER, NAME)), files))
        has_keys = "near_duplicates" in config.clean.rules
        self._signature = Signature.of(config.clean) if has_keys else None
        self._read = cache(read_rows)

    def has(self, paragraphs: list[str]) -> bool:
        """Return whether one of the builds has a document, or a near copy of it if the rule on these is on."""
        text = "\n".join(paragraphs)
        keys = [] if self._signature is None else self._signature.keys(text).tolist()
        return self.has_hash(hash_text(text), *keys)

    def has_hash(self, *hashes: int) -> bool:
        """Return whether one of the builds has one of some hashes."""
        return any(self._is_in(name, files, value) for name, files in self._series for value in hashes)

    def _is_in(self, name: str, files: int, value: int) -> bool:
        (hashes,) = self._read(Path(name.format(part_of(value, HASHES, files), files)), 1)
        place = int(np.searchsorted(hashes, np.uint64(value)))
        return place < len(hashes) and int(hashes[place]) == value


@dataclass(frozen=True)
class HashFiles:
    """The files of hashes of a build, as its records have them."""

    folder: Path
    files: dict[str, FileRecord]
    """Each by its path in the folder, in the order of the hashes."""

    @property
    def sha256(self) -> str:
        """Identity of the documents, whatever instances are made from them."""
        return hashlib.sha256("".join(file.sha256 for file in self.files.values()).encode()).hexdigest()


def read_hashes(folder: Path, state: BuildState) -> HashFiles:
    """Return the files of hashes of a build; none if it has not come so far.

    Raises:
        DataError: The records of them are damaged.
    """
    lines = StepRecords(folder, "hashes").read().values()
    where, remedy = f"{folder}/work/records/hashes.jsonl", "Restore the folder from a copy, or build in a new one."
    outcomes = [unseal(line, Outcome, state.context("hashes"), where=where, remedy=remedy) for line in lines]
    return HashFiles(folder, dict(sorted(item for outcome in outcomes for item in outcome.files.items())))


def require_usable(config: BuildConfig, output: Path) -> list[HashFiles]:
    """Return the files of each build whose documents are left out; warn of rules that make its texts others.

    Raises:
        ConfigError: It is the build itself, or no document or near copy of it could be recognized.
        DataError: It is no finished build, or damaged.
    """
    return [_usable(Path(folder), config, output) for folder in config.exclude]


def _usable(folder: Path, config: BuildConfig, output: Path) -> HashFiles:
    if folder.resolve() == output.resolve():
        raise ConfigError(f"exclude: {folder}: is the folder of this build. Name earlier builds only.")
    state = read_state(folder)
    if state is None:
        raise DataError(
            f"exclude: {folder}: holds no build ({STATE_NAME} is missing). Name the --output of an earlier one."
        )
    _require_comparable(f"exclude: {folder}", state.config, config)
    hashes = read_hashes(folder, state)
    is_whole = hashes.files and all(name.endswith(f"-of-{len(hashes.files):05d}.npy") for name in hashes.files)
    shards = [f"instances/{length}/{MANIFEST_NAME}" for length in state.config["lengths"]]
    missing = [name for name in (*shards, *hashes.files) if not (folder / name).is_file()]
    if missing or not is_whole:
        what = ", ".join(missing[:3]) or "work/records/hashes.jsonl"
        raise DataError(
            f"exclude: {folder}: is not finished, or damaged ({what} is missing or cut). Run its own `megabert-data "
            "build` to the end first; if that helps nothing, build it in a new folder."
        )
    return hashes


def paths_of(known: Iterable[HashFiles]) -> list[str]:
    """Return the paths of all files."""
    return [str(hashes.folder / name) for hashes in known for name in hashes.files]


def require_sound(known: Iterable[HashFiles], inputs: Iterable[InputRecord]) -> dict[str, str]:
    """Return the identity of the documents of each build, by its folder.

    Args:
        known: Result of `require_usable`.
        inputs: Records of the input as it is now, with the files of ``known``.

    Raises:
        DataError: A file is not as it was written.
    """
    now = {record.path: record.sha256 for record in inputs}
    for hashes in known:
        for name, file in hashes.files.items():
            if now[str(hashes.folder / name)] != file.sha256:
                raise DataError(
                    f"exclude: {hashes.folder / name}: is damaged. Restore the folder from a copy, or build it anew."
                )
    return {str(hashes.folder): hashes.sha256 for hashes in known}


def _require_comparable(where: str, theirs: dict[str, Any], config: BuildConfig) -> None:
    """Refuse a build whose documents or near copies cannot be recognized, and warn if some texts may differ."""
    ours = loading.to_dict(config)
    if (theirs["sources"][0]["format"] == "ids") != config.holds_ids:
        raise ConfigError(f"{where}: one of both builds holds ids and the other one text, which have no common hashes.")
    rules = [{*settings["clean"]["rules"]} for settings in (theirs, ours)]
    near = [{name: value for name, value in x["clean"].items() if name.startswith("near")} for x in (theirs, ours)]
    if "near_duplicates" in rules[1] and ("near_duplicates" not in rules[0] or near[0] != near[1]):
        settings = ", ".join(f"{name}: {value}" for name, value in near[0].items())
        own = f"has {settings}" if "near_duplicates" in rules[0] else "was built without the rule"
        raise ConfigError(
            f"{where}: near copies of its documents cannot be recognized, because it {own}. Use the same settings, or "
            "leave near_duplicates out of --clean, and copies of a whole text alone are left out."
        )
    others = sorted((rules[0] ^ rules[1]) - {"near_duplicates", "duplicate_documents", "duplicate_paragraphs"})
    others += [k for k, v in ours["clean"].items() if not k.startswith(OVER_CORPUS) and v != theirs["clean"][k]]
    if others:
        print(
            f"warning: {where}: was cleaned in another way ({', '.join(others)}). A document of it whose text these "
            "change is not recognized",
            file=sys.stderr,
        )
