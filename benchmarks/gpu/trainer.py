"""Part `trainer`: BERT-Large by `megabert pretrain` under DeepSpeed: throughput with loader, optimizer and logging."""

import shutil
import statistics
from pathlib import Path
from typing import Any

import torch
import yaml

from benchmarks.gpu.rows import Row, Rows
from benchmarks.gpu.runs import ROOT, data_of, metrics, run, words
from benchmarks.gpu.sizes import TINY, Sizes

RECIPE = ROOT / "benchmarks" / "gpu" / "large.yaml"
PHASES = ("length 128 megabert pretrain, 8 micro-steps a step", "length 512 megabert pretrain, 8 micro-steps a step")
"""The phases of the recipe."""
WARM_UP = 5
"""Steps at the beginning of a phase that are not counted: compilation, clocks, allocator."""
PREDICTED_TOKENS_PER_S = {128: 270_000, 512: 240_000}
"""What an H200 should reach at least (benchmarks/notes.md)."""
START_S, CHECKPOINT_S = 45.0, 5.0
"""Seconds from the command to the first step, and of a checkpoint of 4 GB: one before step 1, one after each phase."""
ROWS_S = 5.0
"""Seconds that are kept for the phases' rows, so that a run that is cut short still has them."""
TINY_FLAGS = {
    "model__hidden_size": 32,
    "model__num_attention_heads": 2,
    "model__num_hidden_layers": 2,
    "model__intermediate_size": 64,
    "micro_batch_tokens": 2048,
    **{f"phases__{phase}__steps": steps for phase, steps in enumerate((8, 8))},
    **{f"phases__{phase}__global_batch_size": size for phase, size in enumerate((64, 16))},
    "logging__every_steps": 1,
    "validation__max_instances": 8,
}


def predicted_s() -> float:
    """Return how long the recipe should take on an H200."""
    phases = yaml.safe_load(RECIPE.read_text())["phases"]
    seconds = START_S + CHECKPOINT_S * (1 + len(phases))
    for phase in phases:
        tokens = phase["steps"] * phase["global_batch_size"] * phase["max_seq_length"]
        seconds += tokens / PREDICTED_TOKENS_PER_S[phase["max_seq_length"]]
    return seconds


def train(run_dir: Path, limit_s: float, flags: dict[str, Any]) -> Row:
    """Train all phases from the beginning."""
    shutil.rmtree(run_dir, ignore_errors=True)
    command = words("pretrain", config=RECIPE, data__path=data_of(), run_dir=run_dir, **flags)
    return {"seconds": round(run(command, run_dir.with_suffix(".log"), limit_s), 1)}


def phase_row(run_dir: Path, phase: int, warmup_steps: int) -> Row:
    """Return what the run logged of a phase after warming up: means weighted by steps, the greatest memory."""
    rows = [r for r in metrics(run_dir) if r.get("phase") == phase and r.get("phase_step", 0) > warmup_steps]
    rows = [row for row in rows if "perf/tokens_per_s" in row]
    if not rows:
        raise RuntimeError(f"phase {phase} logged nothing after step {warmup_steps}")

    def mean(tag: str) -> float | None:
        values = [row[tag] for row in rows if tag in row]
        return round(statistics.harmonic_mean(values), 2) if values and min(values) > 0 else None

    return {
        "tokens_per_s": round(mean("perf/tokens_per_s") or 0),
        "sequences_per_s": mean("perf/sequences_per_s"),
        "mfu_pct": mean("perf/mfu_pct"),
        "data_wait_pct": round(statistics.fmean(row["perf/data_wait_pct"] for row in rows), 3),
        "max_allocated_gib": round(max(row["memory/max_allocated_gib"] for row in rows), 2),
        "steps": rows[-1]["phase_step"] - warmup_steps,
        "compiled_in_window": sum(row.get("perf/compiled_kernels", 0) for row in rows),
        "first_loss": rows[0]["train/loss"],
        "last_loss": rows[-1]["train/loss"],
    }


def measure(rows: Rows, device: torch.device, sizes: Sizes) -> None:
    """Fill the rows of the part."""
    run_dir = rows.path.parents[1] / "runs" / "large"
    flags = TINY_FLAGS if sizes is TINY else {}
    trained = rows.measure("all phases", lambda: train(run_dir, rows.remaining_s() - ROWS_S, flags))
    # A run that was cut short has still logged what it did.
    if trained is None or not metrics(run_dir):
        return
    for phase, name in enumerate(PHASES, start=1):
        rows.measure(name, lambda phase=phase: phase_row(run_dir, phase, WARM_UP))
