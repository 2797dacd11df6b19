"""Deleting the parts of a build that a changed setting reaches, so that the same folder can be built on.

Manifests go first: from then on nobody reads shards of the earlier settings. The parts that depend on the change are
deleted next. Documents are not: their token ids are the same under any split, so they are set aside and split again.
The new settings are recorded between the two, so a kill anywhere leaves a folder that either command continues.
"""

import os
import shutil
from pathlib import Path

from data_prep.execution.dependence import Config, Part, are_shards_as_before, first_changed
from megabert.errors import ConfigError

PLAN_NAME = "work/plan.json"
SET_ASIDE = {
    PLAN_NAME: "work/plan-before.json",
    "work/records/documents.jsonl": "work/records/before.jsonl",
    "documents": "work/before",
}
"""Where documents of earlier settings wait, with their plan and records, until they are split again; in this order."""
MADE = {
    Part.TEXT: ("work/extract", "work/paragraphs"),
    Part.VOCABULARY: ("work/words", "tokenizer", *SET_ASIDE.values()),
    Part.DOCUMENTS: ("work/tokens", "work/chunks", *SET_ASIDE),
}
"""Files and folders of each part of a build; records are deleted with the step of the same name."""


def make_way(folder: Path, old: Config, new: Config, *, keeps_documents: bool) -> None:
    """Delete everything that depends on the settings that have changed.

    Args:
        folder: The build.
        old: Earlier configuration.
        new: The one that replaces it.
        keeps_documents: Whether documents of the earlier one stay, to be set aside.
    """
    first = first_changed(old, new) or Part.TEXT  # with the same settings, the input is another one
    shards = [path for path in (folder / "instances").glob("*") if path.name.isdecimal()]
    stale = [path for path in shards if not are_shards_as_before(old, new, int(path.name))]
    for path in stale if old["dupe_factor"] == new["dupe_factor"] else shards:
        (path / "manifest.json").unlink(missing_ok=True)
    gone = [name for part, names in MADE.items() if part >= first for name in names]
    gone = [name for name in gone if not (keeps_documents and name in SET_ASIDE)]
    for path in (*stale, *(folder / name for name in gone)):
        _remove(path)
    for name in (*(f"instances-{path.name}" for path in stale), *(Path(name).name for name in gone)):
        _remove(folder / "work" / "records" / f"{name}.jsonl")


def require_plain_documents(folder: Path, old: Config) -> None:
    """Refuse to split documents again that are stored by their sources' weights.

    Raises:
        ConfigError: They are: some are there several times, or not at all.
    """
    weights = [source["weight"] for source in old["sources"]]
    if any(weight != 1 for weight in weights):
        raise ConfigError(
            f"{folder}: its documents are stored by the weights of their sources ({', '.join(map(str, weights))}) and "
            "cannot be split again, and the text that they were made from is deleted. Give --output a new folder, or "
            "repeat the earlier settings."
        )


def set_aside(folder: Path) -> None:
    """Set documents of earlier settings aside; documents that are set aside already stay."""
    if (folder / SET_ASIDE["documents"]).exists():
        return
    for name, goal in SET_ASIDE.items():
        if (folder / name).exists():
            os.replace(folder / name, folder / goal)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
