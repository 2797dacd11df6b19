import re

from support.run_folders import eval_row, train_row, write_run

from megabert.reports.curves import draw_page, render_run_page


def test_page_of_a_run_without_validation_has_its_curves(tmp_path):
    run = write_run(tmp_path / "run", [train_row(step, 8.0) for step in (1, 2)])
    picture = draw_page(run, [])
    assert picture.startswith(b"\x89PNG")
    page = render_run_page(run, picture, [("Notes", "a < b")])
    assert "a &lt; b" in page
    assert "step 2 of 1,360" in page
    assert not re.findall(r'(?:src|href)="(?!data:)', page)


def test_page_shows_what_the_schedules_plan(tmp_path):
    rows = [train_row(step, 8.0) for step in (1, 2)]
    one = draw_page(write_run(tmp_path / "one", rows), [])
    other = draw_page(write_run(tmp_path / "other", rows, phases={"0": {"masked_lm_prob": 0.3}}), [])
    assert one != other


def test_curves_of_an_empty_run_are_empty(tmp_path):
    assert draw_page(write_run(tmp_path / "run", []), []).startswith(b"\x89PNG")


def test_curves_change_with_the_metrics(tmp_path):
    one = draw_page(write_run(tmp_path / "one", [train_row(1, 8.0), train_row(2, 7.0)]), [])
    two = draw_page(write_run(tmp_path / "two", [train_row(1, 8.0), train_row(2, 7.0), eval_row(2, 7.0)]), [])
    assert one != two
