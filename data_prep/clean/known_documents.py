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
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.clean.grouped_hashes import HASHES_PER_RANGE, RangeTask, Rows, read_rows, write_rows
from data_prep.clean.near_duplicates import Signature
from data_prep.config.build import BuildConfig
from data_prep.config.cleaning import CORPUS_RULES
from data_prep.documents.arrow_files import open_mapped
from data_prep.documents.document_set import hash_range, hash_text, rows_in_range
from data_prep.documents.token_files import HASHES, part_of
from data_prep.execution.build_state import STATE_NAME, BuildState, InputRecord, read_state
from data_prep.execution.changes import STEPS
from data_prep.execution.records import Counts, Outcome, StepRecords
from data_prep.execution.work_units import RunningBuild
from megabert.foundation.errors import ConfigError, DataError
from megabert.foundation.json_files import unseal
from megabert.foundation.remote_files import is_url
from megabert.settings.config import loading
from megabert.tokens.shards.folder import MANIFEST_NAME

FOLDER, NAME = STEPS["hashes"].output, "{:05d}-of-{:05d}.npy"
FIRST_READING = "work/near/joined-{:06d}-keys.npy", "work/paragraphs/found-{:05d}-texts.npy"
"""Files of ranges that the first reading of the text leaves, if there is one."""


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
    """Says which documents the builds that are left out have."""

    def __init__(self, config: BuildConfig) -> None:
        """Find the files of the builds, which `require_usable` has checked."""
        folders = [Path(folder, FOLDER) for folder in config.exclude]
        self._series = [(str(folder / NAME), len(list(folder.glob("*.npy")))) for folder in folders]
        self._signature = Signature.of(config.clean) if "near_duplicates" in config.clean.rules else None
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


def read_hashes(folder: Path, state: BuildState) -> list[InputRecord]:
    """Return the files of hashes of a build, as its records have them; none if it has not come so far.

    Raises:
        DataError: The records are damaged.
    """
    where, remedy = f"{folder}/work/records/hashes.jsonl", "Restore the folder from a copy, or build in a new one."
    lines, context = StepRecords(folder, "hashes").read().values(), state.context("hashes")
    outcomes = [unseal(line, Outcome, context, where=where, remedy=remedy) for line in lines]
    files = sorted(item for outcome in outcomes for item in outcome.files.items())
    return [InputRecord(str(folder / name), *record) for name, record in files]


def documents_sha256(folder: Path | str) -> str | None:
    """Return what identifies the documents of a build, whatever instances are made from them; None without hashes."""
    state = read_state(Path(folder))
    records = read_hashes(Path(folder), state) if state else []
    return hashlib.sha256("".join(record.sha256 for record in records).encode()).hexdigest() if records else None


def require_usable(config: BuildConfig, output: Path | None) -> list[InputRecord]:
    """Return the files of the builds whose documents are left out; warn of rules that make their texts others.

    Raises:
        ConfigError: One is the build itself, or none of its documents or near copies could be recognized.
        DataError: One is no finished build, or damaged.
    """
    return [record for folder in config.exclude for record in _usable(folder, config, output)]


def _usable(name: str, config: BuildConfig, output: Path | None) -> list[InputRecord]:
    folder, where = Path(name), f"exclude: {name}"
    if is_url(name):
        raise ConfigError(f"{where}: is no folder of this machine. Name the folder that the build was made in.")
    if output and folder.resolve() == output.resolve():
        raise ConfigError(f"{where}: is the folder of this build. Name earlier builds only.")
    state = read_state(folder)
    if state is None:
        raise DataError(f"{where}: holds no build ({STATE_NAME} is missing). Name the --output of an earlier one.")
    _require_comparable(where, state.config, config)
    records = read_hashes(folder, state)
    manifests = [folder / "instances" / str(length) / MANIFEST_NAME for length in state.config["lengths"]]
    if missing := [path for path in manifests if not path.is_file()]:
        raise DataError(f"{where}: is not finished ({missing[0]} is missing). Run its own build to the end first.")
    names = [record.path for record in records if Path(record.path).is_file()]
    if not names or any(not path.endswith(f"-of-{len(names):05d}.npy") for path in names):
        raise DataError(f"{where}: {FOLDER} lacks hashes of its documents. Restore it, or build it in a new folder.")
    return records


def require_sound(known: list[InputRecord], inputs: list[InputRecord]) -> None:
    """Refuse files of earlier builds that are not as they were written.

    Args:
        known: Result of `require_usable`.
        inputs: Records of the input as it is now, with these files.

    Raises:
        DataError: One is another.
    """
    if damaged := {*known} - {*inputs}:
        name = min(record.path for record in damaged)
        raise DataError(f"exclude: {name}: is damaged. Restore the folder from a copy, or build it in a new one.")


def _require_comparable(where: str, theirs: dict[str, Any], config: BuildConfig) -> None:
    """Refuse a build whose documents or near copies cannot be recognized, and warn if some texts may differ."""
    ours = loading.to_dict(config)
    if (theirs["sources"][0]["format"] == "ids") != config.holds_ids:
        raise ConfigError(f"{where}: one of both builds holds ids and the other one text, which have no common hashes.")
    other = {name for name, value in ours["clean"].items() if value != theirs["clean"][name]}
    lacks = "near_duplicates" not in theirs["clean"]["rules"]
    if "near_duplicates" in config.clean.rules and (lacks or any(name.startswith("near") for name in other)):
        near = (f"{name}: {value}" for name, value in theirs["clean"].items() if name.startswith("near"))
        raise ConfigError(
            f"{where}: {'was built without near_duplicates' if lacks else 'has ' + ', '.join(near)}, so that near "
            "copies of its documents cannot be recognized. Use the same settings, or leave near_duplicates out of "
            "--clean: then copies of a whole text alone are left out."
        )
    # Rules over the corpus drop documents and paragraphs, but the hashes are of the texts before them.
    rules = {*theirs["clean"]["rules"]} ^ {*config.clean.rules}
    other = {
        *(rules - {*CORPUS_RULES}),
        *(name for name in other if not name.startswith(("rules", "near", "min_para"))),
    }
    if other:
        print(
            f"warning: {where}: was cleaned in another way ({', '.join(sorted(other))}). A document of it whose text "
            "these change is not recognized",
            file=sys.stderr,
        )
