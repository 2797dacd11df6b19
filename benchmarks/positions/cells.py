"""The cells of the comparison: chains of forks over three lengths, each a run of ``megabert pretrain`` of one phase."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cells import CORPORA, build_shards, call
from megabert.config.yaml_text import write_yaml
from megabert.observability.metrics import read_metrics

TOKENS = 4096
"""Tokens of a step in every phase: 128 instances of length 32, 32 of 128, 8 of 512."""


class Stretch(NamedTuple):
    """A phase of the chains."""

    length: int
    steps: int
    rate: float
    scored_every: int


STRETCHES = (Stretch(32, 600, 0.015, 100), Stretch(128, 300, 0.01, 20), Stretch(512, 150, 0.015, 15))
PARENTS = {
    # name of a chain in a phase: the chain that it is a fork of
    (0, "start"): None,
    (0, "offset"): None,
    (1, "keep"): "start",
    (1, "tile"): "start",
    (1, "offset"): "offset",
    (1, "tile, zero moments"): "start",
    (2, "keep"): "tile",
    (2, "tile"): "tile",
    (2, "offset"): "offset",
}


@dataclass(frozen=True)
class Cell:
    """One phase of one chain, from one seed."""

    phase: int
    chain: str
    seed: int

    @property
    def length(self) -> int:
        """Length of its phase."""
        return STRETCHES[self.phase].length

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"{self.seed}-{self.length}-{self.chain.replace(', ', '-').replace(' ', '-')}"


def run_cell(cell: Cell, work: Path) -> dict[str, Any]:
    """Train the phase, or resume what was killed, as a fork of the phase before.

    Returns:
        The cell's fields, and by step of the phase the held-out masked-LM loss in nats, at all masked positions, and
        the accuracy of next sentences.
    """
    run_dir, parent = work / "runs" / cell.name, PARENTS[cell.phase, cell.chain]
    recipe = work / "recipes" / f"{cell.name}.yaml"
    recipe.parent.mkdir(parents=True, exist_ok=True)
    recipe.write_text(write_yaml(_recipe(cell)))
    program = "benchmarks.positions.zero_moments" if "zero" in cell.chain else "megabert"
    words = ["--recipe", recipe, "--data.path", build(work), "--run-dir", run_dir, "--seed", cell.seed]
    before = sum(stretch.steps for stretch in STRETCHES[: cell.phase])
    if parent is not None:
        words += ["--fork", f"{work / 'runs' / Cell(cell.phase - 1, parent, cell.seed).name}@{before}"]
    call(program, "pretrain", *words)
    rows = [row for row in read_metrics(run_dir) if "eval/mlm_loss" in row]
    shutil.rmtree(run_dir / "tb")
    return {
        "length": cell.length,
        "chain": cell.chain,
        "seed": cell.seed,
        "steps": [row["step"] - before for row in rows],
        "mlm_loss": [round(row["eval/mlm_loss"], 4) for row in rows],
        "nsp_accuracy": [round(row["eval/nsp_accuracy"], 4) for row in rows],
    }


def _recipe(cell: Cell) -> dict[str, Any]:
    """Return the configuration of a chain up to one of its phases."""
    phases: list[dict[str, Any]] = [
        {
            "max_seq_length": stretch.length,
            "steps": stretch.steps,
            "global_batch_size": TOKENS // stretch.length,
            "learning_rate": stretch.rate,
            "warmup_ratio": 0.1,
        }
        for stretch in STRETCHES[: cell.phase + 1]
    ]
    if cell.chain.startswith("tile"):
        phases[cell.phase]["new_positions"] = "tile"
    if cell.chain == "offset":
        for phase in phases[: len(STRETCHES) - 1]:  # the last one has no room for an offset
            phase["position_offset"] = "random"
    return {
        "model": {
            "preset": "tiny",
            "num_attention_heads": 4,
            "initializer_range": 0.05,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        },
        "optimizer": {"name": "lamb", "lamb_variant": "apex", "betas": [0.9, 0.98]},
        "phases": phases,
        "micro_batch_tokens": 2 * TOKENS,
        "checkpoint": {"every_steps": 10**6},
        "validation": {"every_steps": STRETCHES[cell.phase].scored_every, "max_instances": 256},
        "logging": {"every_steps": 50},
    }


def build(work: Path) -> Path:
    """Build the shards of the bundled English corpus, or find them finished."""
    flags = (*CORPORA["english"][1], "--masked-lm-prob", 0.4, "--dupe-factor", 10)
    return build_shards("english", work / "data", *flags, lengths=[stretch.length for stretch in STRETCHES])
