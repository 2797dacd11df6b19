"""The report's page, also in Chromium: it shows what it should, and its policy allows no address."""

import re

import pytest
from support.run_folders import eval_row, train_row, write_run
from unit.downstream.finetuning.grid.test_scores_below import write_finetuning
from unit.downstream.inspection.chromium import dump_dom

from megabert.downstream.finetuning.grid.grid_results import render_scores_below
from megabert.tooling.reports.curves import draw_page, render_run_page

TASKS = [f"task{number:02}" for number in range(20)]


@pytest.fixture
def page(tmp_path):
    """Return the page of a run with probes and twenty fine-tunings."""
    rows = [train_row(1, 8.0), *(eval_row(step, 7.0) | {"probe/own": 0.5, "probe/own/<b>": 0.7} for step in (10, 20))]
    run = write_run(tmp_path / "run", rows)
    for task in TASKS:
        write_finetuning(run / "tuned" / task, task)
    tables = [("Fine-tunings", render_scores_below(run)), ("Guesses", "<script>x</script>")]
    return render_run_page(run, draw_page(run, []), tables)


def test_page_names_no_address_and_has_light_and_dark_colours(page):
    assert not re.findall(r'(?:src|href)="(?!data:)|https?:|@import|url\(|<script', page)
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in page, (
        "nothing is fetched, whatever it names"
    )
    assert "color-scheme: light dark" in page
    assert "prefers-color-scheme: dark" in page


def test_page_shows_twenty_fine_tunings_and_probes(page, tmp_path):
    (tmp_path / "page.html").write_text(page)
    dom = dump_dom(tmp_path / "page.html", "", tmp_path / "profile")
    assert re.findall(r"tuned/(task\d\d)", dom) == TASKS
    assert dom.count('<img alt="') == 2
    assert "Minimal pairs" in dom
    assert "&lt;script&gt;" in dom
