"""The devices of this host: its CPU, or its GPUs, each of which multiplies a matrix; and the fused ops there."""

import os
import shutil
from pathlib import Path

import torch

from megabert.distributed.process_group import ALL_GPUS
from megabert.ops.backend import BACKENDS, Backend, apex_status
from megabert.tooling.doctor.finding import Finding, failure, verdict_on

_NVIDIA = Path("/proc/driver/nvidia/version")


def check_devices(device: str, *, local_rank: int | None = None) -> list[Finding]:
    """Name the devices that this process sees and have each GPU multiply a matrix.

    Args:
        device: ``auto``, ``cpu`` or ``cuda``. With ``cuda`` a machine without a GPU fails.
        local_rank: Try only this GPU, since the others have ranks of their own; None tries all.
    """
    count = torch.cuda.device_count()
    if device == "cpu":
        return [_cpu()]
    if local_rank is not None and 0 < count <= local_rank:
        text = f"local rank {local_rank} has no GPU: this process sees {count}"
        return [failure("devices", text, f"Start at most one rank per GPU (--ntasks-per-node). {ALL_GPUS}")]
    if count:
        return [_gpu(index) for index in (range(count) if local_rank is None else [local_rank])]
    if not _NVIDIA.exists() and not shutil.which("nvidia-smi"):
        remedy = "Ask SLURM for GPUs (--gpus-per-node), or train on the CPU: --device cpu."
        return [failure("devices", "no GPU is visible", remedy)] if device == "cuda" else [_cpu()]
    # There is a driver, but torch does not see a GPU.
    if torch.version.cuda is None:
        why, remedy = "this torch was built without CUDA", "Remove .venv and install again: CUDA=1 make install"
    else:
        why = f"torch sees no GPU (CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')!r})"
        remedy = "Unset CUDA_VISIBLE_DEVICES, or ask for GPUs."
    text = f"there is an NVIDIA driver, but {why}"
    return [verdict_on("devices", False, text, remedy, otherwise="note" if device == "auto" else "failed"), _cpu()]


def check_apex() -> list[Finding]:
    """Say whether Apex, which is optional, can be used, and how it would be installed."""
    return [Finding(area="apex", level="ok", text=apex_status().removeprefix("apex: "))]


def check_ops(device: str) -> list[Finding]:
    """Name the backend of each op on a device type, and why the preferred ones cannot run.

    Args:
        device: ``cpu`` or ``cuda``.
    """
    chosen: dict[tuple[str, str], list[str]] = {}
    for op, table in BACKENDS.items():
        chosen.setdefault(explain(table, device), []).append(op)
    remedy = "Without Triton a GPU trains slowly. It comes with CUDA builds of torch, and needs gcc and python3-dev."
    return [
        verdict_on("ops", (device, name) != ("cuda", "torch"), f"{', '.join(ops)}: {name} on {device} ({why})", remedy)
        for (name, why), ops in chosen.items()
    ]


def explain(table: tuple[Backend, ...], device: str) -> tuple[str, str]:
    """Return the backend that ``auto`` chooses, and why not one of those before it in the table."""
    passed_over: list[str] = []
    for backend in table:
        obstacle = backend.obstacle(device)
        if obstacle is None:
            return backend.name, "; ".join(passed_over) or "the first choice"
        passed_over.append(f"{backend.name}: {obstacle}")
    return "none", "; ".join(passed_over)


def _cpu() -> Finding:
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return Finding(area="devices", level="ok", text=f"CPU: {cores} of {os.cpu_count()} cores, {memory:.0f} GiB memory")


def _gpu(index: int) -> Finding:
    """Name a GPU and have it multiply, since a broken one often still tells its name."""
    try:
        properties = torch.cuda.get_device_properties(index)
        ones = torch.ones(512, 512, device=f"cuda:{index}")
        total = float((ones @ ones).sum())
        if total != 512.0**3:
            raise RuntimeError(f"a matrix product gave {total}, not {512.0**3}")
        free, _ = torch.cuda.mem_get_info(index)
    except Exception as error:  # whatever the driver says, nobody should train on this GPU
        remedy = "Leave the node out (sbatch --exclude=NODE) and look at nvidia-smi and dmesg there."
        return failure("devices", f"GPU {index}: {type(error).__name__}: {str(error).splitlines()[0]}", remedy)
    memory = properties.total_memory / 2**30
    is_free = free >= 0.9 * properties.total_memory
    text = f"GPU {index}: {properties.name}, {memory:.0f} GiB"
    text += "" if is_free else f", only {free / 2**30:.0f} GiB free"
    return verdict_on("devices", is_free, text, "Another process holds its memory: nvidia-smi names it.")
