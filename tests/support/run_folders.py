"""Run folders written by hand: what watch, compare and the page read."""

import json
from pathlib import Path

from megabert.settings.config.loading import load_run_config, to_yaml


def train_row(step: int, loss: float, *, phase: int = 1, **more) -> dict:
    row = {"step": step, "phase": phase, "phase_step": step, "train/loss": loss, "train/mlm_loss": loss - 0.5}
    row |= {"train/lr": 1e-3, "train/grad_norm": 1.0, "train/skipped_steps": 0, "train/rollbacks": 0}
    return {**row, "perf/sequences_per_s": 64.0, "perf/tokens_per_s": 8192.0, "perf/data_wait_pct": 1.0, **more}


def eval_row(step: int, loss: float, *, phase: int = 1) -> dict:
    row = {"step": step, "phase": phase, "eval/loss": loss, "eval/mlm_loss": loss - 0.5, "eval/mlm_accuracy": 0.25}
    return {**row, "eval/nsp_loss": 0.5, "eval/nsp_accuracy": 0.75}


def write_run(folder: Path, rows: list[dict], *, status: dict | None = None, starts: int = 1, **flags) -> Path:
    """Write a run of the debug recipe with these metrics."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(to_yaml(load_run_config("debug", flags=flags)))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "command.txt").write_text("megabert pretrain\n" * starts)
    if status is not None:
        (folder / "status.json").write_text(json.dumps(status))
    return folder
