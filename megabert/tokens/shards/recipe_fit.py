"""Whether shards were built with the settings that a recipe states, and the command that builds such shards."""

import shlex
from collections.abc import Iterator, Sequence
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from megabert.foundation.cached_folders import place_of
from megabert.foundation.errors import DataError
from megabert.settings.config.loading import build_fields, load_run_config, phase_data, shipped_names
from megabert.settings.config.names import value_at
from megabert.settings.config.run import RunConfig
from megabert.settings.config.shards import PER_LENGTH
from megabert.tokens.shards.folder import MANIFEST_NAME, Manifest, read_manifest
from megabert.tokens.shards.shard_set import ShardSet

METADATA_FIELDS = ("objective", "masking", "mask_unit", "masked_lm_prob", "max_predictions_per_seq")
"""Settings that every set of shards records; the others are known of a ``megabert-data build`` alone."""
TRAINED_VOCABULARY_FIELDS = ("pieces", "vocab_size", "uncased")
"""Settings that say nothing of a tokenizer that was given to the build."""
TEXT_FIELDS = ("language", "validation_share")
"""Settings of which a recipe states nothing."""


def refuse_unfit_shards(config: RunConfig, phases: Sequence[Sequence[ShardSet]]) -> None:
    """Refuse shards that were built with other settings than ``shards`` of the configuration states.

    Args:
        config: The configuration, resolved from recipe, files and flags.
        phases: Training split of each phase's sources.

    Raises:
        DataError: With both values of each setting, the command that builds what is stated, and the flags that accept
            the shards as they are.
    """
    of_phases = zip(phases, config.phases, strict=True)
    for train, phase in ((train, phase) for sources, phase in of_phases for train in sources):
        wanted = build_fields(config)
        lengths = wanted.pop("lengths")
        for name in wanted.keys() & PER_LENGTH:
            wanted[name] = wanted[name][lengths.index(phase.max_seq_length)]
        built = _settings_of(train.manifest)
        differing = [name for name, value in wanted.items() if name in built and built[name] != value]
        if differing:
            accepted = {name: None if name in PER_LENGTH else built[name] for name in differing}
            lines = [
                f"{train.place}: these shards do not fit recipe {config.name}:",
                *(f"  {name}: {_text(built[name])} in the shards, {_text(wanted[name])} wanted" for name in differing),
                f"Build shards for it: {build_command(config, train.folder, train.manifest)}",
                f"Or train on these shards: {' '.join(_flags(accepted, 'shards.'))}",
            ]
            raise DataError("\n".join(lines), see="the-shards-do-not-fit-the-recipe")


def refuse_missing_lengths(config: RunConfig) -> None:
    """Refuse a build that has shards, but none of the length of a phase.

    Raises:
        DataError: With the lengths that are there, and the command that builds all lengths of the phases.
    """
    for index, phase in enumerate(config.phases):
        for folder in phase_data(config, phase).values():
            others = [] if phase.data or folder.exists() else sorted(folder.parent.glob(f"*/{MANIFEST_NAME}"))
            if not others:
                continue
            lengths = ", ".join(sorted((path.parent.name for path in others), key=lambda name: (len(name), name)))
            command = build_command(config, folder, read_manifest(others[0].parent))
            raise DataError(
                f"{folder}: not there: phases[{index}].max_seq_length={phase.max_seq_length}, and {folder.parent} has "
                f"shards of {lengths}.\nBuild all of them: {command}",
                see="there-are-no-shards",
            )


SHARED_FIELDS = ("tokenizer_sha256", "max_seq_length", *METADATA_FIELDS)
"""Properties in which all sources of a phase agree."""


def refuse_unlike_sources(config: RunConfig, phases: Sequence[Sequence[ShardSet]]) -> None:
    """Refuse sources of a phase that were built with different settings.

    Args:
        config: The configuration.
        phases: Training split of each phase's sources.

    Raises:
        DataError: With both values of each setting, and the command that builds a source like the phase's first one.
    """
    for (first, *others), phase in zip(phases, config.phases, strict=True):
        for train in others:
            pairs = {name: [getattr(each.metadata, name) for each in (first, train)] for name in SHARED_FIELDS}
            differing = {name: values for name, values in pairs.items() if values[0] != values[1]}
            if differing:
                lines = [
                    f"{train.place}: these shards do not go with those of {first.place}, the phase's first source:",
                    *(f"  {name}: {_text(other)} here, {_text(own)} there" for name, (own, other) in differing.items()),
                    f"Build them again: {_command_like(first, train, config, phase.max_seq_length)}",
                ]
                raise DataError("\n".join(lines), see="the-shards-do-not-fit-the-recipe")


def _command_like(first: ShardSet, train: ShardSet, config: RunConfig, length: int) -> str:
    """Return the ``megabert-data build`` of a source's text with the settings of the phase's first source."""
    same = {name: getattr(first.metadata, name) for name in METADATA_FIELDS}
    fields = {**_without_vocabulary(build_fields(config)), **same, "tokenizer": str(first.tokenizer_dir)}
    if len(fields["lengths"]) > 1:  # the cap of this length alone is known
        fields["max_predictions_per_seq"] = config.shards.max_predictions_per_seq
    stated = {name: value for name, value in fields.items() if value is not None}
    return _command(config, stated, train.manifest, f"{_build_of(train.folder)}-again")


def build_command(config: RunConfig, folder: Path, manifest: Manifest) -> str:
    """Return the ``megabert-data build`` whose shards a configuration accepts, in a folder next to the present one.

    Args:
        config: The configuration, whose own data stay as they are.
        folder: The shards that do not fit.
        manifest: Shards of the same build, for their text.
    """
    fields, build = build_fields(config), manifest.config
    of_sources = _sources_of(build)[1]
    # The first build's tokenizer stays if it was given, else as much of its vocabulary as the recipe leaves open.
    is_given = build.get("tokenizer") is not None
    languages = [language or build.get("language") for language in of_sources] or [build.get("language")]
    identified = ("language_model",) if "auto" in languages else ()  # a model that identifies nothing is refused
    kept = (*(("tokenizer",) if is_given else TRAINED_VOCABULARY_FIELDS), *TEXT_FIELDS, *identified)
    added = {name: build[name] for name in kept if name not in fields and build.get(name) is not None}
    if is_given:
        fields = _without_vocabulary(fields)
    if config.name in shipped_names("recipe"):
        recipe_fields = build_fields(load_run_config(config.name))
        fields = {name: value for name, value in fields.items() if recipe_fields.get(name) != value}
    own = {f"sources.{number}.language": code for number, code in enumerate(of_sources) if code is not None}
    return _command(config, {**fields, **added, **own}, manifest, f"{_build_of(folder)}-{config.name}")


def _command(config: RunConfig, fields: dict[str, Any], manifest: Manifest, output: str) -> str:
    """Return the ``megabert-data build`` of a manifest's text with some settings, for a recipe if it is shipped."""
    words = ["--for", config.name] if config.name in shipped_names("recipe") else []
    words += [*_flags(fields), "--input", *_sources_of(manifest.config)[0], "--output", output]
    return shlex.join(["megabert-data", "build", *words])


def _without_vocabulary(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in TRAINED_VOCABULARY_FIELDS}


def _build_of(folder: Path) -> str:
    """Return the build's folder or URL that shards come from; the URL's last part if it is only read."""
    place = place_of(folder)
    build = place.rpartition("/instances/")[0] or place
    return build.rpartition("/")[2] if build.startswith("http") else build


def _sources_of(build: dict[str, Any]) -> tuple[list[str], list[str | None]]:
    """Return the inputs of a build's sources, or an example if none is recorded, and the language that each states."""
    inputs = (value_at(build, f"sources.{number}.input") for number in count())
    recorded = [str(source) for source in takewhile(lambda source: source is not None, inputs)]
    return recorded or ["texts/*.txt"], [value_at(build, f"sources.{n}.language") for n in range(len(recorded))]


def _settings_of(manifest: Manifest) -> dict[str, Any]:
    """Return the settings of a build as far as its shards record them."""
    settings = dict(manifest.config)  # whatever another program writes, or nothing
    if settings.get("tokenizer") is not None:
        settings = _without_vocabulary(settings)
    if settings.get("min_tokens", 0) is None:
        settings["min_tokens"] = 0
    elif "min_tokens" in settings:
        lengths, length = settings.get("lengths"), manifest.metadata.max_seq_length
        number = lengths.index(length) if isinstance(lengths, list) and length in lengths else "unknown"
        settings["min_tokens"] = value_at(settings, f"min_tokens.{number}")
    return {**settings, **{name: getattr(manifest.metadata, name) for name in METADATA_FIELDS}}


def _flags(fields: dict[str, Any], section: str = "") -> Iterator[str]:
    """Yield the words that set fields on a command line."""
    for name, value in fields.items():
        yield f"--{section}{name.replace('_', '-')}"
        yield from map(_text, value if isinstance(value, list) else [value])


def _text(value: Any) -> str:
    """Return a value as flags and YAML write it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
