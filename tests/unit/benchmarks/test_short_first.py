"""The comparison of a short first phase with none, and the cells that it shares with two others."""

import json
from argparse import Namespace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def short_first(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.short_first import __main__ as short_first

    return short_first


def result(schedule, seed, losses, tokens, cpu_s, **more):
    return {
        "corpus": "english", "family": "electra", "schedule": schedule, "seed": seed, "unigram": 6.0,
        "loss": losses, "tokens": tokens, "cpu_s": cpu_s, **more,
    }  # fmt: skip


SHORT = result("short first", 1, [5.6, 5.0], [300, 400], [20.0, 30.0], rtd_auc=[0.5, 0.7])
ALONE = result("128 alone", 1, [6.2, 5.8, 5.4], [200, 300, 500], [10.0, 20.0, 40.0], rtd_auc=[0.5, 0.5, 0.6])
RESULTS = [SHORT, ALONE, result("short first", 2, [5.6, 5.0], [300, 400], [20.0, 30.0])]


def test_one_run_without_a_short_phase_gives_both_comparisons(short_first):
    assert short_first.at_equal(SHORT, ALONE, "tokens", "below") == pytest.approx(0.4)
    assert short_first.at_equal({**SHORT, "cpu_s": [20.0, 25.0]}, ALONE, "cpu_s", "below") == pytest.approx(0.3)


def test_a_run_that_ends_before_the_comparison_is_refused(short_first):
    with pytest.raises(ValueError, match=r"seed 1: cpu_s end at 40\.0\. Add steps"):
        short_first.at_equal({**SHORT, "cpu_s": [20.0, 41.0]}, ALONE, "cpu_s", "below")


def test_table_has_the_seeds_that_ran_with_both_schedules_and_the_auc_of_electra(short_first):
    _, below, auc = short_first.table(RESULTS, "english").splitlines()
    assert below.split("  ")[0] == "electra: nats below the unigram"
    assert "1.000 (1.000 to 1.000)" in below
    assert "+0.600" in below
    assert auc.startswith("electra: discriminator AUC")
    assert "+0.150" in auc
    assert short_first.table(RESULTS, "korean") == "nothing was run yet"


def test_curves_are_drawn(short_first, tmp_path):
    short_first.draw(RESULTS, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000


def test_both_schedules_end_with_the_same_phase_but_for_its_steps(short_first):
    from benchmarks.short_first import cells

    for family in cells.CANDIDATES:
        recipes = [cells._recipe(short_first.Cell("english", family, schedule, 1)) for schedule in cells.SCHEDULES]
        (first, last), (alone,) = (recipe["phases"] for recipe in recipes)
        assert first["max_seq_length"] < last["max_seq_length"]
        assert {**last, "steps": None, "new_positions": None} == {**alone, "steps": None, "new_positions": None}


def test_only_cells_without_a_result_are_run_and_each_result_is_written_at_once(short_first, tmp_path):
    from benchmarks.cells import read_results, run_missing

    path, ran = tmp_path / "results.jsonl", []
    path.write_text(json.dumps({"seed": 1, "loss": 5.0}) + "\n")

    def run(cell):
        ran.append((cell.seed, len(read_results(path))))
        if cell.seed == 3:  # a call side by side finishes the next cell meanwhile
            with path.open("a") as file:
                file.write(json.dumps({"seed": 4, "loss": 3.0}) + "\n")
        return {"seed": cell.seed, "loss": 4.0}

    results = read_results(path)
    cells = [Namespace(seed=seed) for seed in (1, 2, 3, 4)]
    run_missing(cells, results, path, key=lambda cell: cell.seed, run=run)
    assert ran == [(2, 1), (3, 2)]
    assert read_results(path) == results


def test_cpu_seconds_do_not_count_validations(short_first, monkeypatch, tmp_path):
    from benchmarks import timed
    from megabert.observability.metrics import MetricWriter, read_metrics

    clock = iter([10.0, 10.0, 13.0, 13.0, 20.0, 20.0, 24.0, 24.0])
    monkeypatch.setattr(MetricWriter, "write", MetricWriter.write)
    monkeypatch.setattr(timed.time, "process_time", lambda: next(clock))
    timed.install()
    writer = MetricWriter(tmp_path, resumed_step=0)
    for step, tag in ((1, "train/loss"), (2, "train/loss"), (2, "eval/mlm_loss"), (3, "train/loss")):
        writer.write(step, {tag: 1.0, "phase": 1})
    writer.close()
    assert [row[timed.TAG] for row in read_metrics(tmp_path)] == [0.0, 3.0, 3.0, 7.0]
