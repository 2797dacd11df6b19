"""Tile sizes that ``megabert tune`` measured on a device, in place of the committed ones: their file, and its use.

A tile's size decides the order of sums, so results with and without a file differ in their last bits; with the same
file they repeat. A file is for one device, one Triton and one text of ``megabert/ops``.
"""

import functools
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import ConfigDict, Field

from megabert.foundation.errors import ConfigError
from megabert.foundation.files import read_small, sha256_file
from megabert.foundation.json_files import read_json
from megabert.settings.config.extensions import installed_version

_OPS = Path(__file__).parents[1]


def device_name(device: torch.device) -> str:
    """Return the product name of a GPU, or ``cpu``."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


@functools.lru_cache(maxsize=1)
def code_sha256() -> str:
    """Return the hash of all files of this room."""
    digest = hashlib.sha256()
    for path in sorted(_OPS.rglob("*.py")):
        digest.update(path.relative_to(_OPS).as_posix().encode() + b"\0" + read_small(path))
    return digest.hexdigest()


Sizes = tuple[int, int, int, int]
"""Rows, columns, warps and stages of a ``tile_sizes.Tiles``."""
Extent = Annotated[int, Field(ge=1, le=1 << 16)]
REMEDY = "Write it anew with megabert tune --save FILE, or leave ops.tile_sizes out."


@dataclass(frozen=True, kw_only=True)
class TunedTiles:
    """Content of a file of tile sizes."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    device: str
    """Product name of the device."""
    triton: str
    """Version of Triton."""
    code: str
    """SHA-256 of ``megabert/ops``."""
    tiles: dict[str, tuple[Extent, Extent, Annotated[int, Field(ge=1, le=32)], Annotated[int, Field(ge=1, le=8)]]]
    """Maps launches to rows, columns, warps and stages; the launches that were measured, also if nothing was faster."""
    ms: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Maps launches to milliseconds with the committed tile and with this one, the op's both passes together."""


_in_use: dict[str, Sizes] = {}
_asked: dict[str, Sizes] = {}
_sha256: list[str] = [""]


def tuned(name: str, committed: Sizes) -> Sizes:
    """Return the tile of a launch: the file's, or else the committed one."""
    _asked[name] = committed
    return _in_use.get(name, committed)


def asked_for() -> dict[str, Sizes]:
    """Return the launches since the last call, with their committed tiles."""
    asked = dict(_asked)
    _asked.clear()
    return asked


def use(tiles: dict[str, Sizes], sha256: str = "") -> None:
    """Let launches take these tiles from now on; none are the committed ones."""
    _in_use.clear()
    _in_use.update(tiles)
    _sha256[0] = sha256


def sha256_in_use() -> str:
    """Return the hash of the file in use, empty if launches take the committed tiles."""
    return _sha256[0]


def identity(device: torch.device) -> dict[str, Any]:
    """Return the fields of a file that tie it to a device, a Triton and a text."""
    return {"device": device_name(device), "triton": installed_version("triton"), "code": code_sha256()}


def read_tiles(path: Path, device: torch.device) -> TunedTiles:
    """Return the content of a file that was made on such a device.

    Raises:
        ConfigError: The file is missing or damaged, or was made for something else.
    """
    content = read_json(path, TunedTiles, remedy=REMEDY, error=ConfigError)
    for name, here in identity(device).items():
        if getattr(content, name) != here:
            what = {"device": "device", "triton": "version of Triton", "code": "text of megabert/ops"}[name]
            there = getattr(content, name)
            raise ConfigError(f"{path}: was measured for another {what} ({there}); here: {here}. {REMEDY}")
    for name, sizes in content.tiles.items():
        if any(number & (number - 1) for number in sizes[:3]):
            raise ConfigError(f"{path}: tiles[{name!r}]={sizes} has a size that is no power of two. {REMEDY}")
    return content


def use_file(path: str | None, device: torch.device) -> str:
    """Let launches take the tiles of a file, or the committed ones, and return the file's SHA-256.

    Raises:
        ConfigError: The file is missing or damaged, or was made for another device, Triton or text.
    """
    use({})
    if path is None:
        return ""
    content = read_tiles(Path(path), device)
    use(dict(content.tiles), sha256_file(path))
    return sha256_in_use()
