"""Which part of a build each setting reaches first, and the deletion of all that a changed setting reaches.

A build is made in four parts, each from those before it. `FIRST_PART` is the one table of what depends on what: records
and plan of a part are sealed with the settings that reach it or a part before, so another setting repeats no more than
it has to, and nothing that was made with another one is taken for current.

Manifests go first: from then on nobody reads shards of the earlier settings. The parts that depend on the change are
deleted next. Documents are not: their token ids are the same under any split, so they are set aside and split again.
The new settings are recorded between the two, so a kill anywhere leaves a folder that either command continues.
"""

import os
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

from megabert.foundation.errors import ConfigError
from megabert.foundation.files import remove_path
from megabert.settings.config.shards import PER_LENGTH

Config = dict[str, Any]


class Part(IntEnum):
    """Parts of a build, in their order."""

    TEXT = 1
    """Step 1: cleaned text, cut into sentences."""
    VOCABULARY = 2
    """Step 2."""
    DOCUMENTS = 3
    """Steps 3 to 5: token ids, split and shuffled. Ids outlive a change: the documents of before are split again."""
    INSTANCES = 4
    """Step 6: shards."""


_SETTINGS = {
    Part.TEXT: "sources.input sources.name sources.format sources.encoding sources.field sources.second_field "
    "sources.language clean exclude max_bad_share language language_model chunk_mib",
    # A vocabulary holds out documents of its own (5%, by another hash), so no share of the documents changes it.
    Part.VOCABULARY: "tokenizer symbols special_ids pieces vocab_size spare_pieces uncased",
    # The objective says how many documents each split needs; documents below min_tokens are counted.
    Part.DOCUMENTS: "sources.weight validation_share objective min_tokens buckets",
    Part.INSTANCES: "lengths pairing masking mask_unit dupe_factor short_seq_prob masked_lm_prob "
    "max_predictions_per_seq seed shard_mib",
}
FIRST_PART: dict[str, Part] = {name: part for part, names in _SETTINGS.items() for name in names.split()}
"""First part that depends on each setting."""


class Step(NamedTuple):
    """A step that has records, in the file of its name."""

    part: Part
    output: str
    """Its file or folder in the folder of the build."""


STEPS = {
    "extract": Step(Part.TEXT, "work/extract"),
    "paragraphs": Step(Part.TEXT, "work/paragraphs"),
    "near": Step(Part.TEXT, "work/near"),
    "hashes": Step(Part.TEXT, "work/hashes"),  # of the documents, for other builds; it outlives all later changes
    "words": Step(Part.VOCABULARY, "work/words"),
    "tokenizer": Step(Part.VOCABULARY, "tokenizer"),
    "ids": Step(Part.VOCABULARY, "work/ids"),  # step 1 of ids, which are checked against the vocabulary
    "tokens": Step(Part.DOCUMENTS, "work/tokens"),
    "chunks": Step(Part.DOCUMENTS, "work/chunks"),
    "documents": Step(Part.DOCUMENTS, "documents"),
    "plan": Step(Part.DOCUMENTS, "work/plan.json"),
}
"""Steps 1 to 5; the steps of instances are named for their lengths. The plan is sealed like a record."""


def settings_of(config: Config, part: Part) -> Config:
    """Return all settings that reach a part or one before it."""
    settings = {name: value for name, value in config.items() if name != "sources" and FIRST_PART[name] <= part}
    settings["sources"] = [
        {name: value for name, value in source.items() if FIRST_PART[f"sources.{name}"] <= part}
        for source in config["sources"]
    ]
    if settings.get("min_tokens"):  # lengths that ask for nothing may come and go
        least = zip(config["lengths"], config["min_tokens"], strict=True)
        settings["min_tokens"] = {str(length): number for length, number in least if number}
    return settings


def shard_settings_of(config: Config, length: int) -> Config:
    """Return all settings that the shards of a length depend on, but for the number of passes."""
    settings = settings_of(config, Part.INSTANCES)
    place = config["lengths"].index(length)
    own = {name: config[name] and config[name][place] for name in PER_LENGTH}
    return {**settings, **own, "lengths": None, "dupe_factor": None}


def first_changed(old: Config, new: Config) -> Part | None:
    """Return the first part that is made with other settings; None if all are as before."""
    return next((part for part in Part if settings_of(old, part) != settings_of(new, part)), None)


def are_shards_as_before(old: Config, new: Config, length: int) -> bool:
    """Whether the shards of a length are current as far as they go when a configuration replaces another.

    The passes that both ask for are. A length that is asked for no more stays if its passes are all that are asked for.
    """
    if first_changed(old, new) not in (None, Part.INSTANCES) or length not in old["lengths"]:
        return False
    if length in new["lengths"]:
        return shard_settings_of(old, length) == shard_settings_of(new, length)
    first, second = (
        {**settings_of(config, Part.INSTANCES), "lengths": None, **dict.fromkeys(PER_LENGTH)} for config in (old, new)
    )
    return first == second


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
