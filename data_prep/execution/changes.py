"""Deleting the parts of a build that a changed setting reaches, so that the same folder can be built on.

Manifests go first: from then on nobody reads shards of the earlier settings. The parts that depend on the change are
deleted next. Documents are not: their token ids are the same under any split, so they are set aside and split again.
The new settings are recorded between the two, so a kill anywhere leaves a folder that either command continues.
"""

import os
from pathlib import Path

from data_prep.execution.dependence import STEPS, Config, Part, are_shards_as_before
from megabert.foundation.errors import ConfigError
from megabert.foundation.files import remove_path

PLAN_NAME = STEPS["plan"].output
SET_ASIDE = {
    PLAN_NAME: "work/plan-before.json",
    "work/records/documents.jsonl": "work/records/before.jsonl",
    "documents": "work/before",
}
"""Where documents of earlier settings wait, with their plan and records, until they are split again; in this order."""


def make_way(folder: Path, first: Part, old: Config, new: Config, *, keeps_documents: bool) -> None:
    """Delete everything that depends on the settings, or on the input, that have changed.

    Args:
        folder: The build.
        first: First part that changes: the text if the input is another one, whatever the settings.
        old: Earlier configuration.
        new: The one that replaces it.
        keeps_documents: Whether documents of the earlier one stay, to be set aside.
    """
    shards = [path for path in (folder / "instances").glob("*") if path.name.isdecimal()]
    stale = [path for path in shards if first <= Part.DOCUMENTS or not are_shards_as_before(old, new, int(path.name))]
    for path in stale if old["dupe_factor"] == new["dupe_factor"] else shards:
        (path / "manifest.json").unlink(missing_ok=True)
    # Steps 1 to 5 from the first one that changes on; documents that are set aside depend on the vocabulary alone.
    kept = SET_ASIDE if keeps_documents else ()
    steps = {name: step for name, step in STEPS.items() if step.part >= first and step.output not in kept}
    # Before documents are set aside, only a build that was killed at its end has left some there.
    aside = SET_ASIDE.values() if first <= Part.VOCABULARY or keeps_documents else ()
    for path in (*stale, *(folder / name for name in (*(step.output for step in steps.values()), *aside))):
        remove_path(path)
    for name in (*(f"instances-{path.name}" for path in stale), *steps):
        remove_path(folder / "work" / "records" / f"{name}.jsonl")


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
