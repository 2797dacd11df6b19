"""The comparison of masked objectives: its recipes, its table, its curves."""

from pathlib import Path

import pytest

from megabert.settings.config.loading import merge_layers
from megabert.settings.config.run import RunConfig

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def objectives(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.masked_objectives import __main__ as objectives

    return objectives


def test_recipes_are_valid_and_train_on_as_many_instances(objectives):
    phases = []
    for name in objectives.OBJECTIVES:
        config = merge_layers(RunConfig, objectives.recipe_of(objectives.Cell(name, 1)))
        phases.append(config.phases[0])
    assert {phase.num_instances for phase in phases} == {objectives.STEPS * objectives.BATCH}
    assert len({str(phase) for phase in phases}) == len(objectives.OBJECTIVES)


def test_table_and_curves_have_the_seeds_that_ran(objectives, tmp_path):
    results = [
        {"objective": "fixed 30%", "seed": seed, "steps": [400, 800], "loss": [6.0, end], "cpu_s": 60}
        for seed, end in ((2, 5.2), (1, 5.0))
    ]
    _, row = objectives.table(results).splitlines()
    assert row.split("  ")[0] == "fixed 30%"
    assert "1, 2" in row
    assert "5.100 (5.000 to 5.200)" in row
    assert objectives.table([]) == "nothing was run yet"
    objectives.draw(results, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000
