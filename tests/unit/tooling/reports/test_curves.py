import re

from matplotlib.figure import Figure
from support.run_folders import eval_row, train_row, write_run

from megabert.foundation.text_tables import render_table
from megabert.observability.metrics import read_metrics
from megabert.tooling.reports import curves
from megabert.tooling.reports.curves import draw_page, render_run_page
from megabert.tooling.reports.report import report_run
from megabert.training.run.folder import read_config


def test_page_of_a_run_without_validation_has_its_curves(tmp_path):
    run = write_run(tmp_path / "run", [train_row(step, 8.0) for step in (1, 2)])
    picture = draw_page(run, [])
    assert picture.startswith(b"\x89PNG")
    page = render_run_page(run, picture, [("Notes", "a < b")])
    assert "a &lt; b" in page
    assert "step 2 of 1,360" in page
    assert not re.findall(r'(?:src|href)="(?!data:)', page)
    assert re.search(r"<p>As of \d{4}-\d\d-\d\d \d\d:\d\d UTC\.</p>", page), "its text says how long ago things were"


def test_words_that_are_written_from_right_to_left_leave_the_cells_of_a_table_in_order():
    hebrew = "\u05d0\u05d1 \u05d2"
    shown = curves.section("Guesses", render_table([("a 1", hebrew, f"{hebrew} 2%", "b")]))
    assert f"<pre>a 1  \u2068{hebrew}\u2069  \u2068{hebrew} 2%\u2069  b</pre>" in shown


def test_slow_run_has_a_rate(tmp_path, shard_folder):
    row = train_row(1, 8.0, **{"perf/sequences_per_s": 0.43})
    run = write_run(tmp_path / "run", [row, eval_row(1, 7.0)], phases={"0": {"data": str(shard_folder)}})
    assert dict(report_run(run)[0].cells)["sequences/s"] == "0.43"


ROWS = [train_row(1, 8.0), train_row(2, 7.0)]


def test_curves_change_with_metrics_and_schedules(tmp_path):
    masked = {"phases": {"0": {"masked_lm_prob": 0.3}}}
    ways = (([], {}), (ROWS, {}), ([*ROWS, eval_row(2, 7.0)], {}), (ROWS, masked))
    pictures = [draw_page(write_run(tmp_path / str(i), rows, **flags), []) for i, (rows, flags) in enumerate(ways)]
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    assert len(set(pictures)) == len(ways)


def test_phases_of_a_fork_are_drawn_at_the_steps_of_its_run(tmp_path, shard_folder):
    rows = [train_row(1300 + step, 8.0, phase=2, phase_step=step) for step in range(1, 21)]
    # The first phase had 1,300 steps in the run that was forked, and has 500 here.
    phases = {"0": {"steps": 500}, "1": {"data": str(shard_folder)}}
    run = write_run(tmp_path / "run", [*rows, eval_row(1320, 7.0, phase=2)], phases=phases)
    axes = Figure().subplots()
    curves._plot_losses(axes, read_metrics(run), report_run(run), None, (0, []))
    (baseline,) = axes.collections
    assert baseline.get_segments()[0][:, 0].tolist() == [1300, 1320]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["training", "held out", "unigram"]
    steps = [step for step, _ in curves._planned(read_config(run), read_metrics(run), first=0)["train/lr"]]
    assert (min(steps), 1300 in steps, 1301 in steps, max(steps)) == (801, True, True, 1360)


def test_fork_is_drawn_from_its_first_step_next_to_its_parent(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(curves, "png_of", lambda figure: figures.append(figure) or b"")
    parent = write_run(tmp_path / "parent", [train_row(step, 9.0) for step in range(1, 1201)])
    rows = [train_row(step, 8.0) for step in range(1101, 1151)]
    fork = write_run(tmp_path / "fork", [*rows, eval_row(1150, 7.0)], fork=f"{parent}@1100")
    draw_page(fork, [])
    curves.draw_losses(fork, [], tmp_path / "loss.png")
    for axes in (figures[0].axes[0], figures[0].axes[2], figures[1].axes[0]):
        assert axes.get_xlim()[0] == 1100
        steps = {is_parent: [] for is_parent in (False, True)}
        for line in axes.get_lines():
            steps[line.get_color() == "lightgray"].extend(line.get_xdata())
        assert (min(steps[True]), max(steps[True])) == (1100, 1200)
        assert min(steps[False]) > 1100, "the plan begins there as well"
    (parent / "metrics.jsonl").unlink()
    draw_page(fork, [])
    assert figures[2].axes[0].get_xlim()[0] == 1100
