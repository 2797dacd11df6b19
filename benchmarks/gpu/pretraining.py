"""Part (e): a small BERT pre-trained in both phases under DeepSpeed on the shipped corpus: text to trained weights.

A machine without numba cannot build shards: `python -m benchmarks.gpu.pretraining` builds them where it is, and
build/bench-gpu-shards goes along.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch

from benchmarks.gpu.rows import Row, Rows
from benchmarks.gpu.sizes import TINY, Sizes

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "bench-gpu-work"
SHARDS = ROOT / "build" / "bench-gpu-shards"
LENGTHS = ("128", "512")
TINY_FLAGS = {
    "phases.0.steps": 6,
    "phases.1.steps": 3,
    "model.hidden_size": 32,
    "model.intermediate_size": 64,
    "micro_batch_tokens": 2048,
    "validation.max_instances": 32,
}


def run(command: list[str], limit_s: float) -> float:
    """Run a command of this repository; return its seconds."""
    started = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        raise RuntimeError(f"{' '.join(command[1:4])} ended with {done.returncode}: {last}")
    return time.monotonic() - started


def data(folder: Path, limit_s: float) -> Row:
    """Build shards of the shipped corpus; a finished build is taken as it is."""
    if all((folder / "instances" / length / "manifest.json").exists() for length in LENGTHS):
        return {"seconds": 0.0, "found": True}
    if importlib.util.find_spec("numba") is None:
        raise RuntimeError("numba is not importable here; run `python -m benchmarks.gpu.pretraining` where it is")
    corpus = ROOT / "examples" / "corpus" / "public_domain.jsonl"
    command = [sys.executable, "-m", "data_prep", "build", "--input", str(corpus), "--format", "jsonl"]
    command += ["--language", "en", "--output", str(folder), "--vocab-size", "4096", "--uncased"]
    command += ["--lengths", *LENGTHS, "--dupe-factor", "1", "--validation-share", "0.06"]
    return {"seconds": round(run([*command, "--workers", str(min(8, os.cpu_count() or 1))], limit_s), 1)}


def pretrain(data_folder: Path, run_dir: Path, limit_s: float, *, is_tiny: bool) -> Row:
    """Train both phases of the debug recipe under DeepSpeed; an interrupted run is resumed."""
    command = [sys.executable, "-m", "megabert", "pretrain", "--recipe", "debug"]
    command += ["--data.path", str(data_folder), "--run-dir", str(run_dir)]
    for name, value in (TINY_FLAGS if is_tiny else {}).items():
        command += [f"--{name}", str(value)]
    seconds = run(command, limit_s)
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    losses = [(row["step"], row["train/mlm_loss"]) for row in rows if "train/mlm_loss" in row]
    evaluations = [(row["step"], row["eval/mlm_loss"]) for row in rows if "eval/mlm_loss" in row]
    return {
        "seconds": round(seconds, 1),
        "first_mlm_loss": losses[0],
        "last_mlm_loss": losses[-1],
        "last_eval_mlm_loss": evaluations[-1] if evaluations else None,
        "tokens_per_s": max((row.get("perf/tokens_per_s", 0.0) for row in rows), default=None),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }


def measure(rows: Rows, device: torch.device, sizes: Sizes) -> None:
    """Fill the rows of part (e)."""
    folder = WORK / ("tiny" if sizes is TINY else "full")
    folder.mkdir(parents=True, exist_ok=True)
    shards = rows.measure("shards of the shipped corpus", lambda: data(SHARDS, rows.remaining_s()))
    if shards is None or "error" in shards:
        return
    rows.measure(
        "debug recipe, both phases",
        lambda: pretrain(SHARDS, folder / "run", rows.remaining_s(), is_tiny=sizes is TINY),
    )


if __name__ == "__main__":
    print(SHARDS, data(SHARDS, 600.0))
