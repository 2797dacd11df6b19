"""Part `smoke`: in a minute, whether the machine can run the rest at all.

Packages are imported, not looked for; the riskiest kernels are held against float64; and a few steps of BERT-Large run
as one CUDA graph. What fails here says which of the parts after it to read with care.
"""

import importlib
import importlib.metadata
import math
import platform
from functools import partial
from types import ModuleType
from typing import Any

import torch

from benchmarks.gpu import parity
from benchmarks.gpu.parts import TRAINER
from benchmarks.gpu.rows import Row, Rows
from benchmarks.gpu.sizes import Sizes
from benchmarks.gpu.training import MegabertStep, kinds, megabert_step, model_config, throughput
from megabert.ops.proof import exact_problems, problems
from megabert.ops.proof.problem import Problem

SLOW = ("deepspeed", "transformers", "accelerate")
"""Packages whose import takes seconds: after the kernels."""
QUICK = ("triton", *(name for name in TRAINER if name not in SLOW))
STEPS = 20
DTYPE = torch.bfloat16


def versions(device: torch.device) -> Row:
    """Return what a figure of this machine depends on beside the packages."""
    found: Row = {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}
    found["system"] = platform.platform()
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {"device": properties.name, "gib": round(properties.total_memory / 2**30, 1)}
        found |= {"cudnn": torch.backends.cudnn.version(), "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
    return found


def version_of(package: str) -> Row:
    """Import a package and return its version.

    numba, for one, is found beside a numpy that it does not know, and fails when it is imported.
    """
    module: ModuleType = importlib.import_module(package)
    name = {"yaml": "PyYAML"}.get(package, package)
    return {"version": getattr(module, "__version__", None) or importlib.metadata.version(name)}


def risky_problems(sizes: Sizes, generator: torch.Generator) -> dict[str, Problem]:
    """Return the kernels that could go wrong on a card first, at the shapes that train, in few tokens.

    At the longest length there are as many sequences as let one program take all keys of a head in turn; the
    gradients of its queries then go through global memory.
    """
    shapes: dict[str, Any] = {"heads": sizes.heads, "head_width": sizes.hidden // sizes.heads, "padding": 5}
    longest = max(sizes.lengths)
    lengths = {
        str(longest // 4): [longest // 4, 1, longest // 4 - 3],
        f"{longest}, programs that take all keys": [longest] * 17 + [longest // 2 + 1, 1],
        str(longest // 2): [longest // 2, 9],
    }
    found = {
        f"attention {label}": problems.attention_problem(some, generator, **shapes) for label, some in lengths.items()
    }
    extras = ("bias", "dropout", "residual", "twice")
    found["layer_norm used twice"] = problems.layer_norm_problem((4099, sizes.hidden), generator, extras=extras)
    found["lamb with bfloat16 weights"] = exact_problems.lamb_problem(50_001, generator, rounded=torch.bfloat16)
    return found


def steps_row(sizes: Sizes, length: int, device: torch.device, *, kind: str) -> Row:
    """Return the throughput of a few steps; it passes if the loss is a number at the end."""
    config, made = model_config(sizes), []

    def make() -> MegabertStep:
        made.append(megabert_step(config, sizes, length, device, kind=kind))
        return made[0]

    row = throughput(make, config, sizes, length, steps=min(STEPS, sizes.steps))
    loss = float(made[0].loss)
    return row | {"last_loss": loss, "passes": math.isfinite(loss)}


def measure(rows: Rows, device: torch.device, sizes: Sizes) -> None:
    """Fill the rows of the part."""
    on_gpu = device.type == "cuda"
    rows.measure("versions", partial(versions, device))
    for package in QUICK:
        rows.measure(f"import {package}", partial(version_of, package))
    generator = torch.Generator(device)
    generator.seed()  # fresh inputs each run
    for label, problem in risky_problems(sizes, generator).items():
        rows.measure(label, partial(parity.row, label, problem, DTYPE, on_gpu=on_gpu))
    kind = kinds(device)[0]
    for length in sizes.lengths:
        row = partial(steps_row, sizes, length, device, kind=kind)
        rows.measure(f"length {length} megabert {kind}, a few steps", row)
    for package in SLOW:
        rows.measure(f"import {package}", partial(version_of, package))
