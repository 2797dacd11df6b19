"""The things that a kernel's machine code depends on: the device, the compiler and the text of this room."""

import functools
import hashlib
from importlib import metadata
from pathlib import Path

import torch

from megabert.foundation.files import read_small

_OPS = Path(__file__).parent


def device_name(device: torch.device) -> str:
    """Return the product name of a GPU, or ``cpu``."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def triton_version() -> str:
    """Return the version of Triton, empty if it is not installed."""
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return ""


@functools.lru_cache(maxsize=1)
def code_sha256() -> str:
    """Return the hash of all files of this room."""
    digest = hashlib.sha256()
    for path in sorted(_OPS.rglob("*.py")):
        digest.update(path.relative_to(_OPS).as_posix().encode() + b"\0" + read_small(path))
    return digest.hexdigest()
