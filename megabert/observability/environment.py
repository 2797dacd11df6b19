"""The environment that a run records: versions and devices."""

import os
import platform
from pathlib import Path
from typing import Any

from megabert.settings.config.extensions import installed_version

PACKAGES = (
    *("megabert", "torch", "deepspeed", "numpy", "pyarrow"),
    *("tokenizers", "safetensors", "tensorboard", "triton", "transformers"),
)


def package_versions() -> dict[str, str]:
    """Return the versions of those packages that matter and are installed."""
    return {name: version for name in PACKAGES if (version := installed_version(name))}


def describe_environment() -> dict[str, Any]:
    """Return versions, host, working folder and devices as values for JSON."""
    import torch

    from megabert.ops.triton_support.tuned_tiles import sha256_in_use

    cuda = torch.cuda.is_available()
    tiles = sha256_in_use()
    return {
        **({"tile_sizes_sha256": tiles} if tiles else {}),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": platform.node(),
        "folder": str(Path.cwd()),
        "cpus": os.cpu_count(),
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else ["cpu"],
        "packages": package_versions(),
    }
