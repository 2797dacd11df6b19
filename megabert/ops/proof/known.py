"""Which backends have been held against their op's definition on this device, kept in the user's cache.

One file for each device, driver, torch, Triton and text of ``megabert/ops``: with another of these, all is proven anew.
Only what passed is kept, so that a failure with a passing cause is tried again.
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path

import torch

from megabert.foundation.errors import DataError
from megabert.foundation.files import atomic_write, read_small
from megabert.foundation.json_files import read_json
from megabert.ops.identity import code_sha256, device_name, triton_version
from megabert.ops.triton_support.tuned_tiles import sha256_in_use

logger = logging.getLogger(__name__)
_DRIVER = Path("/proc/driver/nvidia/version")


def read_known(device: torch.device) -> set[str]:
    """Return the names that a device has proven; none if they are not known."""
    try:
        path = _path(device)
        return set(read_json(path, list[str], remedy="It is written anew.")) if path.exists() else set()
    except (DataError, OSError, RuntimeError) as error:  # a RuntimeError: the user has no home folder
        logger.debug("kernels are proven again: %s", error)
        return set()


def write_known(device: torch.device, proven: Iterable[str]) -> None:
    """Keep the names that a device has proven; a cache that cannot be written costs the next run a few seconds."""
    try:
        path = _path(device)
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, json.dumps(sorted(proven), indent=1) + "\n")
    except (DataError, OSError, RuntimeError) as error:
        logger.debug("the next run proves its kernels again: %s", error)


def _path(device: torch.device) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    digest = hashlib.sha256(json.dumps(identity_of(device)).encode()).hexdigest()
    return cache / "megabert" / "proven-ops" / f"{digest[:24]}.json"


def identity_of(device: torch.device) -> dict[str, str]:
    """Return everything that a kernel's results may depend on, by name: device, driver, versions, code."""
    unit, driver = "", ""
    if device.type == "cuda":
        unit = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
        driver = read_small(_DRIVER).decode("ascii", "replace") if _DRIVER.exists() else ""
    return {
        "device": device_name(device),
        "unit": unit,
        "driver": driver,
        "torch": torch.__version__,
        "triton": triton_version(),
        "is_interpreted": str(os.environ.get("TRITON_INTERPRET") == "1"),
        "code": code_sha256(),
        "tile_sizes": sha256_in_use(),
    }
