"""The cells of the comparison: chains of forks over growing lengths, each a run of one phase."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cells import CORPORA, build_shards, call
from megabert.observability.metrics import read_metrics
from megabert.settings.config.yaml_text import write_yaml

TOKENS = 4096
"""Tokens of a step in every phase: 128 instances of length 32, 32 of 128, 8 of 512."""


class Stretch(NamedTuple):
    """A phase of the chains."""

    length: int
    steps: int
    rate: float
    scored_every: int


Chain = tuple[int, str]
"""A phase, counted from 0, and the name of the chain in it."""


@dataclass(frozen=True)
class Schedule:
    """Phases, the chains through them, and the model that they train."""

    stretches: tuple[Stretch, ...]
    parents: dict[Chain, str | None]
    """The chains in the order in which they are run, and of which chain of the phase before each is a fork."""
    model: dict[str, Any]
    optimizer: dict[str, Any]
    build: tuple[object, ...]
    """Flags of ``megabert-data build`` besides the lengths."""


NO_DROPOUT = {"preset": "tiny", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SCHEDULES = {
    "short first": Schedule(
        stretches=(Stretch(32, 600, 0.015, 100), Stretch(128, 300, 0.01, 20), Stretch(512, 150, 0.015, 15)),
        parents={
            (0, "start"): None,
            (0, "offset"): None,
            (1, "keep"): "start",
            (1, "tile"): "start",
            (1, "offset"): "offset",
            (1, "tile, zero moments"): "start",
            (2, "keep"): "tile",
            (2, "tile"): "tile",
            (2, "offset"): "offset",
        },
        model={**NO_DROPOUT, "num_attention_heads": 4, "initializer_range": 0.05},
        optimizer={"name": "lamb", "lamb_variant": "apex", "betas": [0.9, 0.98]},
        build=(*CORPORA["english"][1], "--masked-lm-prob", 0.4, "--dupe-factor", 10),
    ),
    # The recipe debug and its shards, with more steps of length 512: the model has read less when it gets there.
    "debug": Schedule(
        stretches=(Stretch(128, 1300, 0.02, 100), Stretch(512, 150, 0.005, 15)),
        parents={
            (0, "start"): None,
            (1, "keep"): "start",
            (1, "tile"): "start",
            (0, "offset"): None,
            (1, "offset"): "offset",
        },
        model=NO_DROPOUT,
        optimizer={"betas": [0.9, 0.98]},
        build=("--language", "en", "--vocab-size", "4096"),
    ),
}


@dataclass(frozen=True)
class Cell:
    """One phase of one chain, from one seed."""

    schedule: str
    phase: int
    chain: str
    seed: int

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        """All phases of its schedule."""
        return SCHEDULES[self.schedule].stretches

    @property
    def length(self) -> int:
        """Length of its phase."""
        return self.stretches[self.phase].length

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
    run_dir, parent = work / "runs" / cell.name, SCHEDULES[cell.schedule].parents[cell.phase, cell.chain]
    recipe = work / "recipes" / f"{cell.name}.yaml"
    recipe.parent.mkdir(parents=True, exist_ok=True)
    recipe.write_text(write_yaml(_recipe(cell)))
    program = "benchmarks.positions.zero_moments" if "zero" in cell.chain else "megabert"
    words = ["--recipe", recipe, "--data.path", build(cell, work), "--run-dir", run_dir, "--seed", cell.seed]
    before = sum(stretch.steps for stretch in cell.stretches[: cell.phase])
    if parent is not None:
        fork = Cell(cell.schedule, cell.phase - 1, parent, cell.seed)
        words += ["--fork", f"{work / 'runs' / fork.name}@{before}"]
    call(program, "pretrain", *words)
    rows = [row for row in read_metrics(run_dir) if "eval/mlm_loss" in row]
    shutil.rmtree(run_dir / "tb")
    return {
        "schedule": cell.schedule,
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
        for stretch in cell.stretches[: cell.phase + 1]
    ]
    if cell.chain.startswith("tile"):
        phases[cell.phase]["new_positions"] = "tile"
    if cell.chain == "offset":
        for phase in phases[: len(cell.stretches) - 1]:  # the last one has no room for an offset
            phase["position_offset"] = "random"
    return {
        "model": SCHEDULES[cell.schedule].model,
        "optimizer": SCHEDULES[cell.schedule].optimizer,
        "phases": phases,
        "micro_batch_tokens": 2 * TOKENS,
        "checkpoint": {"every_steps": 10**6},
        "validation": {"every_steps": cell.stretches[cell.phase].scored_every, "max_instances": 256},
        "logging": {"every_steps": 50},
    }


def build(cell: Cell, work: Path) -> Path:
    """Build the shards of the bundled English corpus, or find them finished."""
    flags = SCHEDULES[cell.schedule].build
    return build_shards("english", work / "data", *flags, lengths=[stretch.length for stretch in cell.stretches])
