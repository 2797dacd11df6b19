"""Curves and table of minimal pairs of a run."""

from support.run_folders import eval_row, train_row

from megabert.tooling.reports.curves import draw_probes, probed_sets, render_probes


def probed(step, **accuracies):
    return {**eval_row(step, 7.0), **{f"probe/{name}": value for name, value in accuracies.items()}}


ROWS = [
    train_row(1, 8.0),
    probed(10, english=0.5, **{"english/order": 0.4, "english/case": 0.6}),
    probed(20, english=0.7, **{"english/order": 0.9, "english/case": 0.5}),
    probed(30, english=0.6, **{"english/order": 0.8, "english/case": 0.4, "own_$set$": 1.0, "own_$set$/a_$b": 1.0}),
]


def test_sets_and_their_groups_are_found():
    assert probed_sets(ROWS) == {
        "english": ["probe/english/order", "probe/english/case"],
        "own_$set$": ["probe/own_$set$/a_$b"],
    }
    assert probed_sets(ROWS[:1]) == {}


def test_table_has_the_first_the_best_and_the_last_accuracy():
    lines = [line.split() for line in render_probes(ROWS).splitlines()]
    assert lines[1] == ["order", "40.0", "(10)", "90.0", "(20)", "80.0", "(30)"]
    assert lines[3] == ["all", "50.0", "(10)", "70.0", "(20)", "60.0", "(30)"]
    assert lines[-1] == ["all", "100.0", "(30)", "100.0", "(30)", "100.0", "(30)"]


def test_curves_change_with_the_accuracies_and_take_any_name():
    assert draw_probes(ROWS).startswith(b"\x89PNG")
    assert draw_probes(ROWS) != draw_probes(ROWS[:3])
