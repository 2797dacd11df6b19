"""Tables of text keep what their cells say."""

from megabert.foundation.text_tables import render_table


def test_columns_are_aligned_and_numbers_stay_as_written():
    table = render_table([("loss", "1.50"), ("accuracy", "12")], headers=("name", "value"), align="lr")
    assert table.splitlines() == ["name      value", "loss       1.50", "accuracy     12"]


def test_no_rows_without_headers_are_no_text():
    assert render_table([]) == ""


def test_indented_cells_stay_indented():
    table = render_table([("loss", "1"), ("  baseline", "10")], align="lr")
    assert table.splitlines() == ["loss         1", "  baseline  10"]
