"""Tables of text keep what their cells say, and durations have a unit that fits."""

import pytest

from megabert.foundation.text_tables import render_table, span


def test_columns_are_aligned_and_numbers_stay_as_written():
    table = render_table([("loss", "1.50"), ("accuracy", "12")], headers=("name", "value"), align="lr")
    assert table.splitlines() == ["name      value", "loss       1.50", "accuracy     12"]


def test_no_rows_without_headers_are_no_text():
    assert render_table([]) == ""


def test_indented_cells_stay_indented():
    table = render_table([("loss", "1"), ("  baseline", "10")], align="lr")
    assert table.splitlines() == ["loss         1", "  baseline  10"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0123, "0.012 s"),
        (1.4, "1 s"),
        (119, "119 s"),
        (120, "2.0 min"),
        (86_400, "24.0 h"),
        (2e8, "2,314.8 days"),
    ],
)
def test_span_takes_the_largest_unit_of_two(seconds, text):
    assert span(seconds) == text
