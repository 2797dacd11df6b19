"""The packages that shape the shards: which are installed, and whether a begun build may go on with them."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import megabert
from megabert.errors import DataError

DECISIVE = ("megabert", "sentencex", "tokenizers")
"""Other versions of these may cut or number text differently."""
PACKAGES = (*DECISIVE, "numpy", "pyarrow")


@cache
def installed_version(name: str) -> str:
    """Return the version of a package."""
    if name == "megabert":  # also where it runs from a checkout
        return megabert.__version__
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def installed_versions() -> dict[str, str]:
    """Return the versions of the packages that shape the shards."""
    return {name: installed_version(name) for name in sorted(PACKAGES)}


def require_versions(folder: Path, recorded: dict[str, str]) -> None:
    """Refuse to do units of a build with other packages than it was begun with.

    Raises:
        DataError: Names the packages and the command that installs the recorded ones.
    """
    others = {
        name: recorded[name]
        for name in DECISIVE
        if recorded.get(name, installed_version(name)) != installed_version(name)
    }
    if others:
        found = ", ".join(f"{name} {was} (now {installed_version(name)})" for name, was in others.items())
        pins = " ".join(f"{name}=={was}" for name, was in others.items())
        raise DataError(
            f"{folder}: was begun with {found}; its remaining units would not match those that are done. "
            f"Install the recorded versions to continue (pip install {pins}), or give --output a new folder."
        )
