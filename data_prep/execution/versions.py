"""Versions of the packages that shape the shards, and whether a build that was begun may be continued with them."""

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

    Args:
        folder: The build, for the error.
        recorded: Version of each package when the build was begun.

    Raises:
        DataError: A decisive package has another version; the message has the command that installs the recorded ones.
    """
    others = {name: was for name, was in recorded.items() if name in DECISIVE and was != installed_version(name)}
    if others:
        changes = ", ".join(f"{name} {was} (now {installed_version(name)})" for name, was in others.items())
        pins = " ".join(f"{name}=={was}" for name, was in others.items())
        raise DataError(
            f"{folder}: was begun with {changes}; its remaining units would not match those that are done. "
            f"Install the recorded versions to continue (pip install {pins}), or give --output a new folder."
        )
