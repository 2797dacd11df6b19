"""The comparison of optimizers: its recipes, its search for rates, its tables."""

from pathlib import Path

import pytest

from megabert.settings.config.loading import merge_layers
from megabert.settings.config.run import RunConfig

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def cells(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.optimizers import cells

    return cells


@pytest.fixture
def comparison(cells):
    from benchmarks.optimizers import __main__ as comparison

    return comparison


SECONDS = {"lamb": 0.1, "adamw": 0.102, "stable_adamw": 0.1, "muon": 0.125}


def run_all(cells, path, loss, *calls, widths=(128,)):
    """Run the cells of widths with losses of a formula instead of training, in calls for some of the optimizers."""
    from benchmarks.cells import run_missing

    results, ran = [], []

    def run(cell):
        ran.append(cell)
        scored = list(range(100, cell.steps + 1, 100))
        return {
            **vars(cell), "scored": scored, "loss": [9 - step / 1000 + loss(cell) for step in scored],
            "cpu_s": [step * SECONDS[cell.optimizer] for step in scored],
        }  # fmt: skip

    key = "{0.width} {0.optimizer} {0.rate} {0.steps} {0.seed}".format
    for width in widths:
        for optimizers in calls or [cells.OPTIMIZERS]:
            missing = cells.cells_of(results, width, [1, 2], optimizers)
            run_missing(missing, results, path, key=key, run=run)
    return results, ran


def test_calls_for_some_optimizers_run_the_cells_of_one_call(cells, tmp_path):
    def loss(cell):
        return abs(cell.rate - 2e-3)

    whole, _ = run_all(cells, tmp_path / "whole.jsonl", loss)
    parts, _ = run_all(
        cells, tmp_path / "parts.jsonl", loss, ["muon", "lamb"], ["adamw"], ["stable_adamw"], cells.OPTIMIZERS
    )
    assert sorted(map(str, parts)) == sorted(map(str, whole))


def test_recipes_clip_as_each_optimizer_does(cells):
    clipped = {}
    for optimizer, rate in cells.FIRST_RATES.items():
        config = merge_layers(RunConfig, cells.recipe_of(cells.Cell(128, optimizer, rate, 1000, 1)))
        assert (config.optimizer.name, config.phases[0].learning_rate) == (optimizer, rate)
        clipped[optimizer] = config.optimizer.max_grad_norm
    assert clipped == {"lamb": 1.0, "adamw": 1.0, "stable_adamw": 0.0, "muon": 0.0}


def test_rates_are_searched_until_both_neighbours_of_the_best_are_worse(cells, tmp_path):
    best = {"lamb": 8e-3, "adamw": 8e-3, "stable_adamw": 1e-3, "muon": 2e-3}
    results, ran = run_all(cells, tmp_path / "results.jsonl", lambda cell: abs(cell.rate - best[cell.optimizer]))
    assert {name: cells.best_rate(results, 128, name) for name in best} == best
    tried = {cell.rate for cell in ran if cell.optimizer == "adamw"}
    assert tried == {1e-3, 2e-3, 4e-3, 8e-3, 16e-3}
    assert len(ran) == len(set(ran))


def test_the_search_at_a_greater_width_begins_at_the_best_rate_of_the_lesser(cells, tmp_path):
    _, ran = run_all(cells, tmp_path / "results.jsonl", lambda cell: abs(cell.rate - 8e-3), widths=(128, 256))
    tried = {cell.rate for cell in ran if (cell.width, cell.optimizer) == (256, "adamw")}
    assert tried == {4e-3, 8e-3, 16e-3}


def test_slower_steps_get_shorter_runs_in_equal_time(cells, comparison, tmp_path):
    results, ran = run_all(cells, tmp_path / "results.jsonl", lambda cell: abs(cell.rate - 2e-3) + cell.seed / 100)
    assert {(cell.optimizer, cell.seed) for cell in ran if cell.steps != cells.STEPS} == {("muon", 1), ("muon", 2)}
    assert {cell.steps for cell in ran} == {800, 1000}
    table = comparison.seeds_table(results, 128)
    (muon,) = [line for line in table.splitlines() if line.startswith("muon")]
    assert muon.split()[1:3] == ["0.002", "2"]
    assert "8.015 (8.010 to 8.020)" in muon
    assert "8.215 (8.210 to 8.220), 800 steps" in muon


def test_what_is_missing_is_said_and_curves_are_drawn(cells, comparison, tmp_path):
    results, _ = run_all(cells, tmp_path / "results.jsonl", lambda cell: abs(cell.rate - 2e-3))
    assert comparison.tables(results, 256) == "nothing was run yet"
    assert "CPU s per step" not in comparison.tables([r for r in results if r["optimizer"] == "lamb"], 128)
    comparison.draw(results, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000
