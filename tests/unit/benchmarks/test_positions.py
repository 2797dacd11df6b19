from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def positions(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.positions import __main__ as positions

    return positions


def result(chain, seed, losses, length=128):
    steps, accuracy = [50, 100, 150, 200], [0.5, 0.5, 0.6, 0.7]
    return {
        "length": length, "chain": chain, "seed": seed, "steps": steps, "mlm_loss": losses, "nsp_accuracy": accuracy
    }  # fmt: skip


RESULTS = [
    result("keep", 1, [6.0, 5.8, 5.6, 5.0]),
    result("keep", 2, [6.0, 5.8, 5.6, 5.2]),
    result("tile", 1, [5.5, 5.1, 4.9, 4.8]),
    result("tile", 2, [5.1, 5.0, 4.9, 4.8]),
    result("offset", 1, [6.2, 6.1, 6.0, 5.9]),
]


def test_steps_saved_are_counted_to_the_loss_at_which_the_same_seed_ends_with_kept_rows(positions):
    kept = RESULTS[:2]
    saved = [positions.steps_saved(result, kept) for result in RESULTS]
    assert saved == [
        0,
        0,
        pytest.approx(200 - 125),
        150,
        None,
    ]  # 5.0 is half way between the scores of steps 100 and 150


def test_table_has_a_row_for_each_chain_with_mean_and_range(positions):
    _, keep, tile, offset = positions.table(RESULTS, 128).splitlines()
    assert "5.100 (5.000 to 5.200)" in keep
    assert tile.split("  ")[0] == "tile"
    assert tile.split()[-4:] == ["50%,", "70%", "75,", "150"]
    assert offset.endswith("none")
    assert positions.table(RESULTS, 512) == "nothing was run yet"


@pytest.mark.parametrize("name", ["short first", "debug"])
def test_every_chain_is_a_fork_of_one_that_is_run_before_it(name, positions):
    from benchmarks.positions import cells

    seen = set()
    for (phase, chain), parent in positions.SCHEDULES[name].parents.items():
        assert parent is None or (phase - 1, parent) in seen
        seen.add((phase, chain))
        phases = cells._recipe(positions.Cell(name, phase, chain, 1))["phases"]
        assert {entry["global_batch_size"] * entry["max_seq_length"] for entry in phases} == {cells.TOKENS}


def test_the_first_phase_of_debug_is_that_of_its_recipe(positions):
    from benchmarks.positions import cells
    from megabert.settings.config.loading import load_run_config

    recipe, own = load_run_config("debug"), cells._recipe(positions.Cell("debug", 0, "start", 1))
    (phase,) = own["phases"]
    assert phase == {name: getattr(recipe.phases[0], name) for name in phase}
    assert own["model"].items() <= vars(recipe.model).items()


def test_curves_are_drawn(positions, tmp_path):
    positions.draw(RESULTS, positions.SCHEDULES["short first"], tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000
