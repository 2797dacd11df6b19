"""Part (d): BERT-Large by `megabert pretrain` under DeepSpeed: throughput with loader, optimizer and logging."""

import shutil
import statistics
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.rows import Row, Rows
from benchmarks.gpu.runs import LENGTHS, ROOT, data_of, metrics, run, words
from benchmarks.gpu.sizes import TINY, Sizes

RECIPE = ROOT / "benchmarks" / "gpu" / "large.yaml"
WARMUP_STEPS = 20
"""Steps at the beginning of each phase that are not counted: compilation, clocks, allocator."""
TINY_FLAGS = {
    "model__hidden_size": 32,
    "model__num_attention_heads": 2,
    "model__num_hidden_layers": 2,
    "model__intermediate_size": 64,
    "micro_batch_tokens": 2048,
    "phases__0__steps": 24,
    "phases__0__global_batch_size": 8,
    "phases__1__steps": 22,
    "phases__1__global_batch_size": 2,
    "logging__every_steps": 2,
    "validation__max_instances": 8,
}


def train(run_dir: Path, limit_s: float, flags: dict[str, Any]) -> Row:
    """Train both phases from the beginning."""
    shutil.rmtree(run_dir, ignore_errors=True)
    command = words("pretrain", config=RECIPE, data__path=data_of(), run_dir=run_dir, **flags)
    return {"seconds": round(run(command, run_dir.with_suffix(".log"), limit_s), 1)}


def phase_row(run_dir: Path, phase: int) -> Row:
    """Return what the run logged of a phase after warming up: means weighted by steps, the greatest memory."""
    rows = [r for r in metrics(run_dir) if r.get("phase") == phase and r.get("phase_step", 0) > WARMUP_STEPS]
    rows = [row for row in rows if "perf/tokens_per_s" in row]
    if not rows:
        raise RuntimeError(f"phase {phase} logged nothing after step {WARMUP_STEPS}")

    def mean(tag: str) -> float | None:
        values = [row[tag] for row in rows if tag in row]
        return round(statistics.harmonic_mean(values), 2) if values and min(values) > 0 else None

    return {
        "tokens_per_s": round(mean("perf/tokens_per_s") or 0),
        "sequences_per_s": mean("perf/sequences_per_s"),
        "mfu_pct": mean("perf/mfu_pct"),
        "data_wait_pct": round(statistics.fmean(row["perf/data_wait_pct"] for row in rows), 3),
        "max_allocated_gib": round(max(row["memory/max_allocated_gib"] for row in rows), 2),
        "steps": rows[-1]["phase_step"] - WARMUP_STEPS,
        "first_loss": rows[0]["train/loss"],
        "last_loss": rows[-1]["train/loss"],
    }


def measure(rows: Rows, device: torch.device, sizes: Sizes) -> None:
    """Fill the rows of part (d)."""
    run_dir = rows.path.parents[1] / "runs" / "large"
    flags = TINY_FLAGS if sizes is TINY else {}
    trained = rows.measure("both phases", lambda: train(run_dir, rows.remaining_s(), flags))
    # A run that was cut short has still logged what it did.
    if trained is None or not metrics(run_dir):
        return
    for phase, length in enumerate(LENGTHS, start=1):
        rows.measure(f"length {length} megabert pretrain", lambda phase=phase: phase_row(run_dir, phase))
