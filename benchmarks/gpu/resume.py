"""Part `resume`: a pre-training that is killed with -9 in each phase equals an unbroken run, bit for bit.

Both run side by side: most of their time is Python's start and compilation. The unbroken run counts the
host's waits for the GPU, which changes no number.
"""

import itertools
import json
import shutil
import time
from pathlib import Path

import torch

from benchmarks.gpu.bars import KILLED
from benchmarks.gpu.rows import Row, Rows
from benchmarks.gpu.runs import data_of, metrics, run, start_and_kill, started, wait_for, words
from benchmarks.gpu.sizes import TINY, Sizes
from megabert.foundation.files import sha256_file

FLAGS = {
    "model__hidden_dropout_prob": 0.1,
    "model__attention_probs_dropout_prob": 0.1,
    "checkpoint__every_steps": 10,
    "validation__every_steps": 20,
    "validation__max_instances": 64,
    "logging__every_steps": 1,
    "phases__0__steps": 30,
    "phases__1__steps": 30,
}
TINY_FLAGS = {
    "phases__0__steps": 14,
    "phases__1__steps": 8,
    "checkpoint__every_steps": 4,
    "model__hidden_size": 32,
    "model__intermediate_size": 64,
    "micro_batch_tokens": 2048,
}
KILLED_AT_STEPS = {False: (15, 45), True: (6, 17)}
"""A step in each phase, between two checkpoints."""


def command_of(run_dir: Path, is_tiny: bool) -> list[str]:
    """Return the command, the same for every start."""
    flags = FLAGS | (TINY_FLAGS if is_tiny else {})
    return words("pretrain", recipe="debug", data__path=data_of(), run_dir=run_dir, **flags)


def scores(run_dir: Path) -> list[tuple[str, float]]:
    """Return every loss, norm and accuracy that the run logged, in order."""
    kinds = ("train/loss", "train/mlm_loss", "train/grad_norm", "eval/loss", "eval/mlm_loss")
    return [(f"{kind} at step {row['step']}", row[kind]) for row in metrics(run_dir) for kind in kinds if kind in row]


def digests(run_dir: Path) -> dict[str, str]:
    """Return the SHA-256 of each rank's file in the last checkpoint: masters and both moments."""
    last = max((run_dir / "checkpoints").glob("step_*"))
    return {f"{last.name}/{file.name}": sha256_file(file) for file in sorted(last.glob("*.safetensors"))}


def compare(unbroken: Path, killed: Path) -> Row:
    """Return the first place where two runs differ, if any."""
    values, files = scores(unbroken), digests(unbroken)
    pairs = itertools.zip_longest(values, scores(killed))
    difference = next((f"{a} and {b}" for a, b in pairs if a != b), None)
    if difference is None and files != digests(killed):
        difference = "the weights or moments of the last checkpoint"
    if not (values and files):
        difference = "nothing was logged or saved"
    return {"passes": difference is None, "first_difference": difference, "values": len(values), "files": len(files)}


def counting_waits(command: list[str], counts: Path) -> list[str]:
    """Return a command of megabert that also counts the host's waits for the GPU (waits.py)."""
    return [*command[:2], "benchmarks.gpu.waits", str(counts), *command[3:]]


def waits_row(counts: Path) -> Row:
    """Return how often the host waited for the GPU in a step, and for what; it should wait once."""
    if not counts.exists():
        raise RuntimeError("no waits were counted: that takes a GPU")
    found = json.loads(counts.read_text())
    number = sum(found["waits"].values())
    waits = ", ".join(f"{name} {count}" for name, count in found["waits"].items())
    return {"per_step": number / found["steps"], "waits": waits, "passes": number == found["steps"]}


def measure(rows: Rows, device: torch.device, sizes: Sizes) -> None:
    """Fill the rows of the part."""
    is_tiny = sizes is TINY
    folder = rows.path.parents[1] / "runs"
    unbroken, killed, counts = folder / "unbroken", folder / "killed", folder / "waits.json"

    def train() -> Row:
        for run_dir in (unbroken, killed):
            shutil.rmtree(run_dir, ignore_errors=True)
        counts.unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        began, log = time.monotonic(), unbroken.with_suffix(".log")
        with started(counting_waits(command_of(unbroken, is_tiny), counts), log) as process:
            command, steps = command_of(killed, is_tiny), []
            for place, step in enumerate(KILLED_AT_STEPS[is_tiny]):
                killed_log = folder / f"killed_{place}.log"
                steps.append(start_and_kill(command, killed_log, killed, at_step=step, limit_s=rows.remaining_s()))
            run(command, killed.with_suffix(".log"), rows.remaining_s())
            wait_for(process, log, rows.remaining_s())
        return {"killed_after_steps": steps, "seconds": round(time.monotonic() - began, 1)}

    if "seconds" in (rows.measure("both runs", train) or {}):
        # Without a GPU there is nothing to wait for.
        rows.measure("synchronizations per step", lambda: waits_row(counts), is_peer=device.type != "cuda")
        rows.measure(KILLED, lambda: compare(unbroken, killed))
