"""Options that several verbs share, and how they become a configuration."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from data_prep.config import BuildConfig, CleanConfig, CleaningRule, SourceConfig
from data_prep.execution.executors import available_cores
from megabert.config import loading
from megabert.errors import ConfigError

SOURCE_FIELDS = ("format", "encoding", "field")
FORMATS = get_args(SourceConfig.__annotations__["format"])
RULES = get_args(CleaningRule)


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where text comes from."""
    defaults = {name: info.default for name, info in SourceConfig.__pydantic_fields__.items()}  # type: ignore[attr-defined]
    parser.add_argument("--input", nargs="+", metavar="GLOB", help="files; each glob is a source, counted on its own")
    parser.add_argument("--format", choices=FORMATS, help=f"of all --input (default: {defaults['format']}, by name)")
    parser.add_argument("--encoding", help=f"of all --input, decoded strictly (default: {defaults['encoding']})")
    parser.add_argument(
        "--field", help=f"JSON Lines, Parquet, Arrow: key or column of the text (default: {defaults['field']})"
    )
    default = " ".join(CleanConfig().rules)
    rules = ("none", *RULES)
    parser.add_argument(
        "--clean", nargs="+", choices=rules, metavar="RULE", help=f"of {' '.join(rules)} (default: {default})"
    )
    parser.add_argument("--config", type=Path, nargs="+", default=[], metavar="FILE", help="YAML files, before flags")


def add_worker_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say who does the work."""
    parser.add_argument("--workers", type=int, default=available_cores(), help="processes (default: all cores)")
    text = "spread the work over MPI ranks; automatic under mpirun or srun with several tasks"
    parser.add_argument("--mpi", action="store_true", help=text)


def add_config_argument(parser: argparse.ArgumentParser, name: str, **options: Any) -> None:
    """Add ``--name`` for a field of BuildConfig, with its documentation and default."""
    (row,) = (row for row in loading.field_table(BuildConfig) if row.path == name)
    shown = " ".join(map(str, row.default)) if isinstance(row.default, tuple) else row.default
    text = f"{row.about.rstrip('.')} (default: {shown})" if row.default is not None else row.about
    parser.add_argument(f"--{name.replace('_', '-')}", help=text.replace("%", "%%"), **options)


def make_config(arguments: argparse.Namespace, fields: Sequence[str]) -> BuildConfig:
    """Merge defaults, files and flags.

    Raises:
        ConfigError: Unknown or impossible settings, or no source.
    """
    given = {name: getattr(arguments, name, None) for name in fields}
    flags: dict[str, Any] = {name: value for name, value in given.items() if value is not None and value is not False}
    if getattr(arguments, "clean", None) is not None:
        flags["clean"] = {"rules": [] if arguments.clean == ["none"] else arguments.clean}
    layers: list[Any] = [*arguments.config, flags]
    of_source = {name: getattr(arguments, name) for name in SOURCE_FIELDS if getattr(arguments, name)}
    if arguments.input:
        flags["sources"] = [{"input": glob, **of_source} for glob in arguments.input]
    elif of_source:
        raise ConfigError(f"--{next(iter(of_source))} goes with --input; sources in a file have their own settings.")
    if not arguments.input and not any("sources" in loading.read_yaml(path) for path in arguments.config):
        raise ConfigError("No text given: use --input GLOB ..., or `sources:` in a --config file.")
    return loading.build(BuildConfig, *layers)
