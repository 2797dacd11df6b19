"""Part `smoke`: whether the machine has all packages; each is imported, not looked for."""

import importlib
import importlib.metadata
import platform
from functools import partial
from types import ModuleType

import torch

from benchmarks.gpu.parts import TRAINER
from benchmarks.gpu.rows import Row, Rows
from benchmarks.gpu.sizes import Sizes


def versions(device: torch.device) -> Row:
    """Return what a figure of this machine depends on in addition to the packages."""
    found: Row = {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}
    found["system"] = platform.platform()
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {"device": properties.name, "gib": round(properties.total_memory / 2**30, 1)}
        found |= {"cudnn": torch.backends.cudnn.version(), "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
    return found


def version_of(package: str) -> Row:
    """Import a package and return its version.

    numba, for one, is found next to a numpy that it does not know, and fails when it is imported.
    """
    module: ModuleType = importlib.import_module(package)
    name = {"yaml": "PyYAML"}.get(package, package)
    return {"version": getattr(module, "__version__", None) or importlib.metadata.version(name)}


def measure(rows: Rows, device: torch.device, sizes: Sizes) -> None:
    """Fill the rows of the part."""
    rows.measure("versions", partial(versions, device))
    for package in ("triton", *TRAINER, "transformers", "accelerate"):
        rows.measure(f"import {package}", partial(version_of, package))
