"""Extensions: optimizers, cleaning rules and tasks that packages of the user's register by entry points.

A name that is none of ours is looked for in the entry points ``megabert.optimizers``, ``megabert.cleaning_rules`` or
``megabert.tasks``. The first look reads the lists of all installed packages (13 ms for 190 of them), so that none is
taken before a name is used.
"""

from collections.abc import Collection, Mapping
from functools import cache
from importlib import metadata
from inspect import isabstract
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from pydantic.dataclasses import is_pydantic_dataclass

from megabert.foundation.errors import ConfigError
from megabert.settings.config.names import did_you_mean, value_at

BASES = {
    "optimizer": "megabert.optim.base:OptimizerOptions",
    "cleaning rule": "data_prep.clean.quality:LineRule",
    "task": "megabert.downstream.finetuning.tasks:Task",
}
"""Class by kind: an entry point names a subclass that is a pydantic dataclass of options, or for a task an object. It
is imported with the extension, since a build needs no torch."""


def load_extension(
    kind: str, name: str, ours: Collection[str], options: Mapping[str, Any], package: str | None = None
) -> tuple[Any, str] | None:
    """Return an extension with its options, and its package with the version; None if the name is one of ours.

    Args:
        kind: One of ``BASES``.
        name: Name in the configuration.
        ours: The names that megabert has itself.
        options: Options as they were given.
        package: The package that a run recorded; without one, any version will do.

    Raises:
        ConfigError: Nobody registers the name, or two do; the package is missing or has another version, cannot be
            imported, or registers something else; an option is wrong.
    """
    if package:
        require_package(package, f"{kind} {name}")
    entries = [entry for entry in registered(kind) if entry.name == name]
    owners = ["megabert"] * (name in ours) + [f"{entry.dist.name} {entry.dist.version}" for entry in entries]  # type: ignore[union-attr]
    where = f"{kind} {name} of {' and '.join(owners)}"
    if len(owners) > 1:
        raise ConfigError(f"{where}: a name is registered once. Uninstall one, or rename its entry point.")
    if name in ours:
        return None
    if not entries:
        known = did_you_mean(name, [*ours, *registered(kind).names])
        raise ConfigError(f"{name}: no such {kind}, here or in an installed package{known}")
    try:
        value, base = entries[0].load(), resolve_name(BASES[kind])
    except Exception as error:
        raise ConfigError(f"{where} cannot be imported: {type(error).__name__}: {error}. Correct it.") from error
    if isinstance(value, base):
        return value, owners[0]
    is_class = isinstance(value, type) and issubclass(value, base) and is_pydantic_dataclass(value)
    if not is_class or isabstract(value):
        raise ConfigError(f"{where} is {value!r}: no pydantic dataclass with all methods of {base.__name__}.")
    from megabert.settings.config.loading import merge_layers  # which imports the configurations

    try:
        return merge_layers(value, options), owners[0]
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def installed_version(package: str) -> str:
    """Return the version of a package, empty if it is not installed."""
    return next((one.version for one in metadata.distributions(name=package)), "")


def require_package(package: str, user: str) -> None:
    """Refuse to continue something with another package than it was begun with: it would follow two codes.

    Args:
        package: The recorded name and version.
        user: Folder, optimizer or task that needs it, for the error.

    Raises:
        ConfigError: With the command that installs it.
    """
    name, _, version = package.rpartition(" ")
    has = installed_version(name) or "not installed"
    if has != version:
        raise ConfigError(f"{user} was begun with {package} (here: {has}). Install that: pip install {name}=={version}")


def require_recorded(path: Path, field: str) -> None:
    """Refuse to continue without the package that a file records, before settings that name its extension are read."""
    from megabert.settings.config.loading import read_yaml

    if path.is_file() and (package := value_at(read_yaml(path), field)):
        require_package(str(package), str(path.parent))


@cache
def registered(kind: str) -> metadata.EntryPoints:
    """Return the entry points of a kind; a package that is installed later is noticed by the next process."""
    return metadata.entry_points(group=f"megabert.{kind.replace(' ', '_')}s")
