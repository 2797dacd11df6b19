"""Part `curves`: curves of the debug recipe on this device, from three seeds, in a file for ``megabert compare``.

A recipe that needs hours is run by itself; ``benchmarks/reference_curves.py NAME-TEXT --runs`` then writes its curves.
"""

from pathlib import Path

import torch

from benchmarks.gpu.rows import Row, Rows
from benchmarks.gpu.runs import data_of, run, words
from benchmarks.gpu.sizes import TINY, Sizes

SEEDS = (42, 1, 2)
FLAGS = {"validation__every_steps": 100}
TINY_FLAGS = {
    "phases__0__steps": 20,
    "phases__1__steps": 4,
    "model__hidden_size": 32,
    "model__intermediate_size": 64,
    "validation__every_steps": 10,
    "validation__max_instances": 16,
    "logging__every_steps": 2,
}


def train(run_dir: Path, seed: int, rows: Rows, is_tiny: bool) -> Row:
    """Train one seed; a run that was begun is continued."""
    flags = TINY_FLAGS if is_tiny else FLAGS
    command = words("pretrain", recipe="debug", seed=seed, data__path=data_of(), run_dir=run_dir, **flags)
    return {"seconds": round(run(command, run_dir.with_suffix(".log"), rows.remaining_s()), 1)}


def write(run_dirs: list[Path], output: Path) -> Row:
    """Write the curves, and hold each run against the others' band with all of them in it."""
    from benchmarks.reference_curves import write_curves
    from megabert.tooling.reports.on_track import compare_with_curves

    write_curves(
        run_dirs, output, text="the shards of the GPU runbook", commands=["python -m benchmarks.gpu --parts curves"]
    )
    tracks = [compare_with_curves(run_dir, output) for run_dir in run_dirs]
    return {"passes": all(track.is_on_track for track in tracks), "bytes": output.stat().st_size}


def measure(rows: Rows, device: torch.device, sizes: Sizes) -> None:
    """Fill the rows of the part."""
    folder = rows.path.parents[1] / "runs" / "curves"
    run_dirs = [folder / f"seed_{seed}" for seed in SEEDS]
    trained = [
        rows.measure(f"seed {seed}", lambda seed=seed, run_dir=run_dir: train(run_dir, seed, rows, sizes is TINY))
        for seed, run_dir in zip(SEEDS, run_dirs, strict=True)
    ]
    if all(row is not None and "seconds" in row for row in trained):
        rows.measure("curves written", lambda: write(run_dirs, folder / f"debug-{device.type}.json"))
