"""Part `nsight`: the hottest kernels under NVIDIA's profiler, and one under its memory checker, if they are there.

python -m benchmarks.gpu.nsight KERNEL [CALLS]     runs the op of a kernel at its training shape, for the tools
"""

import csv
import os
import re
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from benchmarks.gpu.rows import Row, Rows
from benchmarks.gpu.runs import run
from benchmarks.gpu.sizes import GPU, Sizes
from megabert.ops.proof import problems
from megabert.ops.proof.problem import Problem, values_and_gradients

Make = Callable[[Sizes, torch.Generator], Problem]


def attention(length: int, tokens: int, sizes: Sizes, generator: torch.Generator) -> Problem:
    """Return attention over full sequences."""
    lengths = [length] * (tokens // length)
    head_width = sizes.hidden // sizes.heads
    return problems.attention_problem(lengths, generator, heads=sizes.heads, head_width=head_width)


def layer_norm(sizes: Sizes, generator: torch.Generator) -> Problem:
    """Return a layer's LayerNorm, whose result is used twice."""
    extras = ("bias", "dropout", "residual", "twice")
    return problems.layer_norm_problem((sizes.tokens, sizes.hidden), generator, extras=extras)


def bias_gelu(sizes: Sizes, generator: torch.Generator) -> Problem:
    """Return a layer's GELU."""
    return problems.bias_gelu_problem((sizes.tokens, sizes.intermediate), generator, approximate=False)


KERNELS: dict[str, tuple[str, Make]] = {
    "attention_backward 512": ("attention_backward", partial(attention, 512, GPU.tokens)),
    "attention_backward 128": ("attention_backward", partial(attention, 128, GPU.tokens)),
    "attention_forward 512": ("attention_forward", partial(attention, 512, GPU.tokens)),
    "layer_norm_backward": ("layer_norm_backward", layer_norm),
    "bias_gelu_backward": ("bias_gelu_backward", bias_gelu),
}
"""For each row, the profiled kernel and the function that returns its problem."""
CHECKED = "attention 512, 20 sequences"
CHECKS: dict[str, Make] = {CHECKED: partial(attention, 512, 20 * 512)}
"""Enough sequences that a program takes all keys of a head, and few enough for a check of every access."""
FOLDERS = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute")
METRICS = {
    "gpu__time_duration.sum": "time",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "multiprocessors",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "memory",
    "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active": "tensor cores",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "warps",
    "launch__registers_per_thread": "registers",
}
"""Columns of the raw page, as far as a version has them, by their name in the report."""


def call(name: str, calls: int) -> None:
    """Run an op forward and backward."""
    make = CHECKS.get(name) or KERNELS[name][1]
    problem = make(GPU, torch.Generator("cuda").manual_seed(0))
    tensors = {key: tensor.to(torch.bfloat16) for key, tensor in problem.tensors.items()}
    for _ in range(calls):
        values_and_gradients(partial(problem.run, backend="triton"), tensors)
    torch.cuda.synchronize()


def tool(name: str) -> str:
    """Return where a program of NVIDIA's is.

    Raises:
        RuntimeError: It is not on this machine.
    """
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *FOLDERS]))
    if found is None:
        raise RuntimeError(f"{name} is not on this machine")
    return found


def profiled(name: str, folder: Path, limit_s: float) -> Row:
    """Profile the second launch of a kernel; the whole report is kept next to the row."""
    ncu, report = tool("ncu"), folder / f"{name.replace(' ', '_')}.ncu-rep"
    # Clocks as they are in training, not the base clock at which ncu would hold them.
    command = [ncu, "--set", "full", "--clock-control", "none", "--kernel-name", f"regex:^{KERNELS[name][0]}"]
    command += ["--launch-skip", "1", "--launch-count", "1", "--force-overwrite", "--export", str(report)]
    run([*command, sys.executable, "-m", "benchmarks.gpu.nsight", name, "2"], report.with_suffix(".log"), limit_s)
    page = report.with_suffix(".csv")
    run([ncu, "--import", str(report), "--csv", "--page", "raw"], page, limit_s)
    return metrics_of(page.read_text())


def metrics_of(page: str) -> Row:
    """Return the metrics of a raw page: a line of names, one of units, then one for each launch.

    Raises:
        RuntimeError: No kernel was profiled.
    """
    lines = list(csv.reader(line for line in page.splitlines() if line.startswith('"')))
    if len(lines) < 3:
        raise RuntimeError(f"ncu profiled no kernel: {page.strip()[-200:]}")
    names, units, values = lines[0], lines[1], lines[-1]
    columns = {name: (unit, value) for name, unit, value in zip(names, units, values, strict=True)}
    return {
        f"{label} ({columns[metric][0]})".removesuffix(" ()"): float(columns[metric][1].replace(",", ""))
        for metric, label in METRICS.items()
        if metric in columns
    }


def checked(name: str, folder: Path, limit_s: float) -> Row:
    """Let every access to memory of an op be checked; tensors do not share allocations meanwhile."""
    log = folder / "memcheck.log"
    command = [
        tool("compute-sanitizer"),
        "--tool",
        "memcheck",
        sys.executable,
        "-m",
        "benchmarks.gpu.nsight",
        name,
        "1",
    ]
    run(["env", "PYTORCH_NO_CUDA_MEMORY_CACHING=1", *command], log, limit_s)
    summary = re.search(r"ERROR SUMMARY: (\d+) error", log.read_text())
    if summary is None:
        raise RuntimeError(f"compute-sanitizer printed no summary: {log.read_text().strip()[-200:]}")
    return {"errors": int(summary[1]), "passes": summary[1] == "0"}


def measure(rows: Rows, device: torch.device, sizes: Sizes) -> None:
    """Fill the rows of the part. A machine without the tools, or that does not permit them, has none."""
    folder = rows.path.parents[1] / "runs" / "nsight"
    for name in KERNELS:
        rows.measure(f"ncu: {name}", lambda name=name: profiled(name, folder, rows.remaining_s()), is_peer=True)
    # Nobody knows how long the check of every access takes: it has the time that is left.
    check = partial(checked, CHECKED, folder)
    rows.measure(f"memcheck: {CHECKED}", lambda: check(rows.remaining_s()), is_peer=True)


if __name__ == "__main__":
    call(sys.argv[1], int(sys.argv[2]))
