"""Masked objectives at equal tokens: fixed and scheduled shares, shares drawn per instance, rare pieces more often.

    python -m benchmarks.masked_objectives [--objectives "fixed 15%" ...] [--seeds 1 2 3]

A RoBERTa of two layers, 128 wide, AdamW, on the bundled English corpus with the demo's vocabulary: 800 steps of 64
instances of length 32, whose masks the loader draws. The rate is constant after its warm-up, so that each point of a
curve is a run that ends there. All are scored alike: the held-out split has masks of 15% of the tokens, drawn without
weights, and its loss is unweighted.
"""

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.cells import (
    CORPORA,
    Curve,
    Result,
    build_shards,
    call,
    children_cpu_s,
    draw_panels,
    parser_of,
    read_results,
    run_missing,
    spread,
)
from megabert.foundation.text_tables import render_table
from megabert.observability.metrics import read_metrics
from megabert.settings.config.yaml_text import write_yaml

OBJECTIVES: dict[str, dict[str, Any]] = {
    "fixed 15%": {"masked_lm_prob": 0.15},
    "fixed 30%": {"masked_lm_prob": 0.3},
    "30% to 15%": {"masked_lm_prob": 0.3, "final_masked_lm_prob": 0.15},
    "10% to 90%, drawn": {"masked_lm_range": [0.1, 0.9]},
    "10% to 90%, drawn, 1/t": {"masked_lm_range": [0.1, 0.9], "masked_lm_weight": "inverse_share"},
    "15%, rare pieces": {"masked_lm_prob": 0.15, "masked_lm_rarity": 0.5},
}
"""Fields of the phase by the name of the objective."""
LENGTH, BATCH, STEPS, RATE = 32, 64, 800, 2e-3
SCORED_EVERY, SCORED_INSTANCES = 100, 1024


@dataclass(frozen=True)
class Cell:
    """One run of the comparison."""

    objective: str
    seed: int

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"{list(OBJECTIVES).index(self.objective)}-{self.seed}"


def recipe_of(cell: Cell) -> dict[str, Any]:
    """Return the recipe of a cell."""
    phase = {
        "max_seq_length": LENGTH,
        "steps": STEPS,
        "global_batch_size": BATCH,
        "learning_rate": RATE,
        "warmup_ratio": 0.1,
        "decay": "constant",
        **OBJECTIVES[cell.objective],
    }
    sizes = {"family": "roberta", "preset": "tiny", "num_attention_heads": 4, "initializer_range": 0.05}
    return {
        "model": {**sizes, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
        "optimizer": {"name": "adamw"},
        "phases": [phase],
        "micro_batch_tokens": 4096,
        "checkpoint": {"every_steps": 10**6},
        "validation": {"every_steps": SCORED_EVERY, "max_instances": SCORED_INSTANCES},
        "logging": {"every_steps": SCORED_EVERY},
    }


def run_cell(cell: Cell, work: Path) -> Result:
    """Train and delete the run; one that was killed begins again.

    Returns:
        The cell's fields, the steps of its validations, the held-out loss in nats at each, and the run's CPU seconds.
    """
    flags = (*CORPORA["english"][1], "--objective", "none", "--masking", "dynamic", "--dupe-factor", 1)
    data = build_shards("english", work / "data", *flags, lengths=(LENGTH,))
    run_dir, recipe, before = work / "runs" / cell.name, work / "recipes" / f"{cell.name}.yaml", children_cpu_s()
    shutil.rmtree(run_dir, ignore_errors=True)
    recipe.parent.mkdir(parents=True, exist_ok=True)
    recipe.write_text(write_yaml(recipe_of(cell)))
    call("megabert", "pretrain", "--recipe", recipe, "--data.path", data, "--run-dir", run_dir, "--seed", cell.seed)
    rows = [row for row in read_metrics(run_dir) if "eval/mlm_loss" in row]
    shutil.rmtree(run_dir)
    return {
        **asdict(cell),
        "steps": [row["step"] for row in rows],
        "loss": [round(row["eval/mlm_loss"], 4) for row in rows],
        "cpu_s": round(children_cpu_s() - before),
    }


def runs_of(results: list[Result], objective: str) -> list[Result]:
    """Return the runs of an objective, by seed."""
    return sorted((r for r in results if r["objective"] == objective), key=lambda r: r["seed"])


def table(results: list[Result]) -> str:
    """Return the table: mean and range of the seeds, half way and at the end."""
    rows = []
    for objective in OBJECTIVES:
        runs = runs_of(results, objective)
        if runs:
            middle, end = (spread([run["loss"][at] for run in runs]) for at in (len(runs[0]["loss"]) // 2 - 1, -1))
            seeds = ", ".join(str(run["seed"]) for run in runs)
            rows.append((objective, seeds, middle, end, f"{sum(run['cpu_s'] for run in runs) / len(runs):.0f}"))
    headers = ("objective", "seeds", f"step {STEPS // 2}", f"step {STEPS}", "CPU s")
    return render_table(rows, headers=headers, align="llrrr") if rows else "nothing was run yet"


def draw(results: list[Result], path: Path) -> None:
    """Draw the held-out loss of each objective over the steps."""
    curves = []
    for objective in OBJECTIVES:
        runs = runs_of(results, objective)
        if runs:
            curves.append(Curve(objective, runs[0]["steps"], [run["loss"] for run in runs]))
    panels = {(f"length {LENGTH}, {BATCH} instances per step", "step"): curves}
    draw_panels(panels, path, y_label="held-out masked-LM loss, nats", name="masked_objectives", bottom=3)


def main() -> None:
    """Run the cells that the results lack, then print the table and draw the picture."""
    parser = parser_of(__doc__, __file__, name="masked_objectives")
    parser.add_argument("--objectives", nargs="+", choices=OBJECTIVES, default=list(OBJECTIVES))
    options = parser.parse_args()
    results = read_results(options.results)
    cells = [Cell(objective, seed) for seed in options.seeds for objective in options.objectives]
    run_missing(
        [] if options.report else cells,
        results,
        options.results,
        key=lambda cell: (cell.objective, cell.seed),
        run=lambda cell: run_cell(cell, options.work.resolve()),
    )
    print(table(results))
    if options.plot:
        draw(results, options.plot)


if __name__ == "__main__":
    main()
