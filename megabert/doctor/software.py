"""Versions of what is installed, and the backend that each fused op would run.

What imports torch is imported in the functions that are called only where torch is there.
"""

import importlib
import importlib.util
import platform
from typing import TYPE_CHECKING

from megabert.doctor.finding import Finding, verdict_on
from megabert.observability.environment import package_versions

if TYPE_CHECKING:
    from megabert.ops.backend import Backend

NEEDED = ("deepspeed", "numpy", "pyarrow", "tokenizers", "safetensors", "tensorboard", "pydantic", "yaml")
"""Modules without which nothing trains; torch has a check of its own."""
OPS = ("layer_norm", "attention", "bias_gelu", "cross_entropy", "lamb")


def check_versions() -> list[Finding]:
    """Name the versions; a module that is needed and cannot be found is a failure."""
    versions = ", ".join(f"{name} {version}" for name, version in package_versions().items())
    return [
        Finding(area="versions", level="ok", text=f"python {platform.python_version()}, {versions}"),
        *(_failure(f"{name} is not importable") for name in NEEDED if importlib.util.find_spec(name) is None),
    ]


def _failure(text: str) -> Finding:
    return Finding(area="versions", level="failed", text=text, remedy="make install")


def check_torch() -> list[Finding]:
    """Import torch, and return a finding only if that fails: then no other check that needs torch can run."""
    try:
        importlib.import_module("torch")
    except (ImportError, OSError) as error:  # OSError: one of its libraries is damaged, or is not for this machine
        return [_failure(f"torch is not importable: {error}")]
    return []


def check_apex() -> list[Finding]:
    """Say whether Apex, which is optional, can be used, and how it would be installed."""
    from megabert.ops.backend import apex_status

    return [Finding(area="apex", level="ok", text=apex_status().removeprefix("apex: "))]


def check_ops(device: str) -> list[Finding]:
    """Name the backend of each op on a device type, and why the preferred ones cannot run.

    Args:
        device: ``cpu`` or ``cuda``.
    """
    chosen: dict[tuple[str, str], list[str]] = {}
    for op in OPS:
        table: tuple[Backend, ...] = importlib.import_module(f"megabert.ops.{op}.api").BACKENDS
        chosen.setdefault(explain(table, device), []).append(op)
    remedy = "Without Triton a GPU trains slowly: pip install triton"
    return [
        verdict_on("ops", (device, name) != ("cuda", "torch"), f"{', '.join(ops)}: {name} on {device} ({why})", remedy)
        for (name, why), ops in chosen.items()
    ]


def explain(table: "tuple[Backend, ...]", device: str) -> tuple[str, str]:
    """Return the backend that ``auto`` chooses, and why not one of those before it in the table."""
    passed_over: list[str] = []
    for backend in table:
        obstacle = backend.obstacle(device)
        if obstacle is None:
            return backend.name, "; ".join(passed_over) or "the first choice"
        passed_over.append(f"{backend.name}: {obstacle}")
    return "none", "; ".join(passed_over)
