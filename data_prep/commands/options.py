"""Options that several commands share, and how they become a configuration."""

from argparse import Namespace
from pathlib import Path
from typing import Any, get_args

from data_prep.config import BuildConfig, CleanConfig, CleaningRule, SourceConfig
from data_prep.execution.executors import available_cores
from megabert.command_line.arguments import add_config_files
from megabert.command_line.parser import Parser
from megabert.config import loading
from megabert.config.fields import field_table
from megabert.errors import ConfigError, DataError
from megabert.schema import MANIFEST_NAME

SOURCE_FIELDS = ("format", "encoding", "field")
"""Fields of a source that are also flags for all ``--input``."""


def add_source_arguments(parser: Parser) -> None:
    """Add the options that say where text comes from."""
    parser.add_argument("--input", nargs="+", metavar="GLOB", help="files; each glob is a source, counted on its own")
    for row in field_table(SourceConfig):
        if row.path in SOURCE_FIELDS:
            text = f"{row.about.rstrip('.')}; for all --input (default: {row.default})"
            parser.add_argument(f"--{row.path}", choices=row.choices or None, help=text)
    rules, default = get_args(CleaningRule), " ".join(CleanConfig().rules)
    text = f"cleaning rules, clean.rules in files: none, or of {', '.join(rules)} (default: {default})"
    parser.add_argument("--clean", nargs="+", choices=("none", *rules), metavar="RULE", help=text)
    add_config_files(parser, under="the defaults")


def add_worker_arguments(parser: Parser) -> None:
    """Add the options that say who does the work."""
    text = "processes (default: one a core)"
    parser.add_argument("--workers", type=int, default=available_cores(), metavar="N", help=text)
    text = "spread the work over MPI ranks; automatic under mpirun or srun with several tasks"
    parser.add_argument("--mpi", action="store_true", help=text)


def make_config(options: Namespace) -> BuildConfig:
    """Merge defaults, files and flags.

    Raises:
        ConfigError: Unknown or impossible settings, or no source.
    """
    fields: dict[str, Any] = dict(options.fields)
    if options.clean is not None:
        fields["clean"] = {**fields.get("clean", {}), "rules": [] if options.clean == ["none"] else options.clean}
    of_source = {name: getattr(options, name) for name in SOURCE_FIELDS if getattr(options, name)}
    if options.input:
        fields["sources"] = [{"input": glob, **of_source} for glob in options.input]
    elif of_source:
        raise ConfigError(f"--{next(iter(of_source))} goes with --input; sources in a file have their own settings.")
    elif not any("sources" in loading.read_yaml(path) for path in options.config):
        raise ConfigError("No text given: use --input GLOB ..., or `sources:` in a --config file.")
    return loading.build(BuildConfig, *options.config, fields)


def shard_folders(folder: Path) -> list[Path]:
    """Return the folders of shards of a build, shortest length first, or the folder itself if it is one.

    Raises:
        DataError: The folder is neither.
    """
    if (folder / MANIFEST_NAME).is_file():
        return [folder]
    folders = sorted((path for path in folder.glob("instances/*") if path.is_dir()), key=lambda path: int(path.name))
    if not folders:
        raise DataError(
            f"{folder}: neither a build nor a folder of shards. Name the --output of `megabert-data build`."
        )
    return folders
