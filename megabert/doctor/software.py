"""Versions of what is installed, and the backend that each fused op would run.

What imports torch is imported in the functions that are called only where torch is there.
"""

import importlib
import importlib.util
import platform
from collections.abc import Mapping
from typing import TYPE_CHECKING

from megabert.doctor.finding import Finding
from megabert.observability.environment import package_versions

if TYPE_CHECKING:
    from megabert.ops.backend import Backend

NEEDED = ("deepspeed", "numpy", "pyarrow", "tokenizers", "safetensors", "tensorboard", "pydantic", "yaml")
"""Modules without which nothing trains; torch has a check of its own."""
OPS = ("layer_norm", "attention", "bias_gelu", "cross_entropy", "lamb")


def check_versions() -> list[Finding]:
    """Name the versions; a module that is needed and cannot be found is a failure."""
    versions = ", ".join(f"{name} {version}" for name, version in package_versions().items())
    findings = [Finding(area="versions", level="ok", text=f"python {platform.python_version()}, {versions}")]
    findings += [
        Finding(area="versions", level="failed", text=f"{name} is not importable", remedy="make install")
        for name in NEEDED
        if importlib.util.find_spec(name) is None
    ]
    return findings


def check_torch() -> list[Finding]:
    """Import torch, and return a finding only if that fails: then no other check that needs torch can run."""
    try:
        importlib.import_module("torch")
    except (ImportError, OSError) as error:  # OSError: one of its libraries is damaged, or is not for this machine
        text = f"torch is not importable: {error}"
        return [Finding(area="versions", level="failed", text=text, remedy="make install")]
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
        table: dict[str, Backend] = importlib.import_module(f"megabert.ops.{op}.api").BACKENDS
        chosen.setdefault(explain(table, device), []).append(op)
    findings = []
    for (name, why), ops in chosen.items():
        is_slow = device == "cuda" and name == "torch"
        findings.append(
            Finding(
                area="ops",
                level="note" if is_slow else "ok",
                text=f"{', '.join(ops)}: {name} on {device} ({why})",
                remedy="Without Triton a GPU trains slowly: pip install triton" if is_slow else "",
            )
        )
    return findings


def explain(table: "Mapping[str, Backend]", device: str) -> tuple[str, str]:
    """Return the backend that ``auto`` chooses, and why not one of those before it in the table."""
    passed_over: list[str] = []
    for name, backend in table.items():
        obstacle = backend.obstacle(device)
        if obstacle is None:
            return name, "; ".join(passed_over) or "the first choice"
        passed_over.append(f"{name}: {obstacle}")
    return "none", "; ".join(passed_over)
