"""The cells of the comparison: a width, an optimizer, a rate, a number of steps and a seed, each a run."""

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.cells import Result, call
from benchmarks.timed import TAG
from megabert.observability.metrics import read_metrics
from megabert.settings.config.yaml_text import write_yaml

LENGTH, BATCH, MASKED = 128, 16, 0.3
STEPS = 1000
SCORED_EVERY, SCORED_INSTANCES = 100, 256
WIDTHS = {128: (2, 336), 256: (4, 672)}
"""Heads and width of the feed-forward layer by width of the model."""
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "lamb": {"name": "lamb", "lamb_variant": "apex", "max_grad_norm": 1.0},
    "adamw": {"name": "adamw", "max_grad_norm": 1.0},
    "stable_adamw": {"name": "stable_adamw"},
    "muon": {"name": "muon"},
}
"""Each with its own rule of clipping: the global norm at 1, or none."""
FIRST_RATES = {"lamb": 8e-3, "adamw": 2e-3, "stable_adamw": 2e-3, "muon": 2e-3}
"""Where the search begins at the least width."""
FACTOR = 2.0
"""Ratio of neighbouring rates."""
SAME_TIME = 0.03
"""A step that takes at most this share longer than the fastest one's is as fast."""


@dataclass(frozen=True)
class Cell:
    """One run of the comparison."""

    width: int
    optimizer: str
    rate: float
    steps: int
    seed: int

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"{self.width}-{self.optimizer}-{self.rate:g}-{self.steps}-{self.seed}"


def recipe_of(cell: Cell) -> dict[str, Any]:
    """Return the recipe of a cell."""
    heads, intermediate = WIDTHS[cell.width]
    return {
        "model": {
            "family": "modernbert",
            "hidden_size": cell.width,
            "num_hidden_layers": 4,
            "num_attention_heads": heads,
            "intermediate_size": intermediate,
            "max_position_embeddings": LENGTH,
            "global_attn_every_n_layers": 2,
            "local_attention": 8,
            "global_rope_theta": 1.0e4,
            "initializer_range": 0.05,
        },
        "optimizer": {**OPTIMIZERS[cell.optimizer], "betas": [0.9, 0.98], "weight_decay": 0.01},
        "phases": [
            {
                "max_seq_length": LENGTH,
                "steps": cell.steps,
                "global_batch_size": BATCH,
                "masked_lm_prob": MASKED,
                "learning_rate": cell.rate,
                "warmup_ratio": 0.1,
                "decay": "one_minus_sqrt",
                "decay_ratio": 0.3,
            }
        ],
        "micro_batch_tokens": BATCH * LENGTH,
        "checkpoint": {"every_steps": cell.steps},
        "validation": {"every_steps": SCORED_EVERY, "max_instances": SCORED_INSTANCES},
        "logging": {"every_steps": SCORED_EVERY // 4},
    }


def run_cell(cell: Cell, data: Path, work: Path) -> Result:
    """Train and delete the run. What was killed begins again: the CPU time of a resumed run would not count all of it.

    Returns:
        The cell's fields, and for each validation its step, the held-out masked-LM loss in nats and the CPU seconds of
        training until then.
    """
    run_dir, recipe = work / "runs" / cell.name, work / "recipes" / f"{cell.name}.yaml"
    shutil.rmtree(run_dir, ignore_errors=True)
    recipe.parent.mkdir(parents=True, exist_ok=True)
    recipe.write_text(write_yaml(recipe_of(cell)))
    words = ("--recipe", recipe, "--data.path", data, "--run-dir", run_dir, "--seed", cell.seed)
    call("benchmarks.timed", "pretrain", *words)
    rows = [row for row in read_metrics(run_dir) if "eval/mlm_loss" in row]
    if not rows or rows[-1]["step"] != cell.steps:
        raise RuntimeError(f"{run_dir}: ends before step {cell.steps}. Does another call run this cell?")
    shutil.rmtree(run_dir)
    return {
        **asdict(cell),
        "scored": [row["step"] for row in rows],
        "loss": [round(row["eval/mlm_loss"], 4) for row in rows],
        "cpu_s": [row[TAG] for row in rows],
    }


def of(results: list[Result], **fields: object) -> list[Result]:
    """Return the results with these values."""
    return [result for result in results if all(result[name] == value for name, value in fields.items())]


def best_rate(results: list[Result], width: int, optimizer: str) -> float:
    """Return the rate of the lowest loss of seed 1 at the common number of steps."""
    own = of(results, width=width, optimizer=optimizer, steps=STEPS, seed=1)
    return float(min(own, key=lambda result: result["loss"][-1])["rate"])


def next_rate(results: list[Result], width: int, optimizer: str) -> float | None:
    """Return the rate to try: the narrower model's best one, then neighbours of the best; None when both are worse."""
    own = {result["rate"] for result in of(results, width=width, optimizer=optimizer, steps=STEPS, seed=1)}
    if not own:
        narrower = [w for w in WIDTHS if w < width and of(results, width=w, optimizer=optimizer)]
        return best_rate(results, max(narrower), optimizer) if narrower else FIRST_RATES[optimizer]
    best = best_rate(results, width, optimizer)
    return next((rate for rate in (best / FACTOR, best * FACTOR) if rate not in own), None)


def seconds_a_step(results: list[Result], width: int, optimizer: str) -> float:
    """Return the CPU seconds of a step: the least of the runs, since others' work on the machine can only add to it."""
    return min(r["cpu_s"][-1] / r["scored"][-1] for r in of(results, width=width, optimizer=optimizer, steps=STEPS))


def steps_in_equal_time(results: list[Result], width: int, optimizer: str) -> int:
    """Return the steps that fit in the time of the fastest optimizer's, a multiple of the distance of validations."""
    seconds = {name: seconds_a_step(results, width, name) for name in OPTIMIZERS}
    ratio = min(seconds.values()) / seconds[optimizer]
    return STEPS if ratio > 1 - SAME_TIME else SCORED_EVERY * round(STEPS * ratio / SCORED_EVERY)


def cells_of(results: list[Result], width: int, seeds: list[int], optimizers: Iterable[str]) -> Iterator[Cell]:
    """Yield the cells of a width: the search for the rates, then the seeds, then the shorter runs of equal time.

    Shorter runs come when all optimizers have run, since the fastest one's time is the measure.
    """
    for optimizer in optimizers:
        while (rate := next_rate(results, width, optimizer)) is not None:
            yield Cell(width, optimizer, rate, STEPS, 1)
    best = {optimizer: best_rate(results, width, optimizer) for optimizer in optimizers}
    for seed in seeds:
        for optimizer, rate in best.items():
            yield Cell(width, optimizer, rate, STEPS, seed)
    if {result["optimizer"] for result in of(results, width=width)} != set(OPTIMIZERS):
        return
    shorter = {optimizer: steps_in_equal_time(results, width, optimizer) for optimizer in optimizers}
    for seed in seeds:
        for optimizer, rate in best.items():
            yield Cell(width, optimizer, rate, shorter[optimizer], seed)
