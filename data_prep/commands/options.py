"""Options that several commands have: where the text comes from, how it is built, and who does the work."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data_prep.clean.known_documents import require_sound, require_usable
from data_prep.config.build import BUILD_NEEDS, BuildConfig, SourceConfig
from data_prep.config.cleaning import RULES, CleanConfig
from data_prep.config.ids import TEXT_NEEDS
from data_prep.execution.executors import Executor
from data_prep.extract.inputs import hash_inputs
from data_prep.identification.identifier import require_identifier
from megabert.foundation.errors import ConfigError
from megabert.settings.command_line.parser import Parser, bounded, whole
from megabert.settings.config import loading
from megabert.settings.config.fields import field_table
from megabert.settings.config.needs import refuse_idle

MAX_WORKERS = 4096
SOURCE_FIELDS = ("format", "encoding", "field", "second_field")
"""Fields of a source that are also flags for all ``--input``."""


def add_source_arguments(parser: Parser) -> None:
    """Add the options that say where text comes from."""
    text = "files; each glob is a source, counted on its own"
    parser.add_argument("--input", action="extend", nargs="+", metavar="GLOB", help=text)
    for row in field_table(SourceConfig):
        if row.path in SOURCE_FIELDS:
            text = f"{row.about.rstrip('.')}; for all --input (default: {row.default})"
            flag = f"--{row.path}".replace("_", "-")
            parser.add_argument(flag, choices=row.choices or None, help=text)
            parser.add_rule(flag, needs=["--input"])  # sources of a file have their own
    default = " ".join(CleanConfig().rules)
    text = f"cleaning rules, clean.rules in files: none, or of {', '.join(RULES)} and packages (default: {default})"
    parser.add_argument("--clean", action="extend", nargs="+", metavar="RULE", help=text)
    parser.add_rule("--clean", excludes=["--clean.rules"])
    recipes = ", ".join(loading.shipped_names("recipe"))
    text = f"build what this recipe of megabert pretrain is meant for: {recipes}, or a file; flags override it"
    parser.add_argument("--for", dest="recipe", metavar="RECIPE", help=text)
    parser.add_config_files(under="the recipe of --for")


def add_worker_arguments(parser: Parser) -> None:
    """Add the options that say who does the work."""
    text = "processes (default: one per core; for less than 8 MB, which take less time than their start, one)"
    parser.add_argument("--workers", type=bounded(whole, least=1, most=MAX_WORKERS), metavar="N", help=text)
    text = "spread the work over MPI ranks; automatic under mpirun or srun with several tasks"
    parser.add_argument("--mpi", action="store_true", help=text)
    parser.add_rule("--workers", excludes=["--mpi"])


def make_config(options: Namespace) -> BuildConfig:
    """Merge defaults, the shards of a recipe, files and flags.

    Raises:
        ConfigError: Unknown or impossible settings, or no source.
    """
    fields: dict[str, Any] = dict(options.fields)
    if options.clean is not None:
        fields["clean"] = {**fields.get("clean", {}), "rules": [] if options.clean == ["none"] else options.clean}
    of_source = {name: getattr(options, name) for name in SOURCE_FIELDS if getattr(options, name)}
    # The N-th --input is source N: --sources.N.weight and the like change it.
    sources = [{"input": glob, **of_source} for glob in options.input or ()]
    return resolve_build(sources, options.recipe, fields, files=options.config)


def resolve_build(
    sources: Sequence[Mapping[str, Any]], recipe: str | None, fields: Mapping[str, Any], *, files: Sequence[Path] = ()
) -> BuildConfig:
    """Resolve a build: defaults < shards of the recipe < files in order < sources < fields.

    Args:
        sources: Fields of each source; none if a file names them.
        recipe: Recipe of the run that is to read the shards, if there is one.
        fields: Nested fields that override all others. None may be without effect.
        files: YAML files.

    Raises:
        ConfigError: Unknown or impossible settings, or no source.
    """
    if not sources and not any("sources" in loading.read_yaml(path) for path in files):
        raise ConfigError("No text given: use --input GLOB ..., or `sources:` in a --config file.")
    recipe_fields = loading.build_fields(loading.load_run_config(recipe)) if recipe else {}
    own = {"sources": list(sources)} if sources else {}
    layers: tuple[Mapping[str, Any] | Path, ...] = (recipe_fields, *files, own, fields)
    config = loading.merge_layers(BuildConfig, *layers)
    if config.objective == "none" and config.masking == "dynamic":  # further passes would be copies
        config = loading.merge_layers(BuildConfig, {"dupe_factor": 1}, *layers)
    if idle := config.clean.options.keys() - {*config.clean.rules}:
        raise ConfigError(f"clean.options.{min(idle)}: clean.rules lacks that rule. Add it, or leave its options out.")
    for needs in (BUILD_NEEDS, TEXT_NEEDS):
        refuse_idle(fields, loading.to_dict(config), needs)
    return config


def require_named(config: BuildConfig, output: Path | None) -> None:
    """Refuse a language model, or builds to leave out, that could not be used, before any text is read.

    Args:
        config: Names them.
        output: Folder of the build, which it cannot leave out itself; None if it has none.

    Raises:
        ConfigError: One does not fit the build, or a package is missing.
        DataError: One is unfit or damaged.
    """
    require_identifier(config)
    known = require_usable(config, output)
    require_sound(known, hash_inputs([], config, Executor(), [record.path for record in known]))
