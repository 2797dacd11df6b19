import threading
import warnings

import pytest

from megabert.observability.trackers.follow import TrackerError, flat, followed_rows, send


def rows_now(rows):
    """Return the rows up to the next look that finds none."""
    return list(iter(lambda: next(rows), None))


def test_rows_are_followed_until_the_run_is_over(tmp_path):
    path, is_over = tmp_path / "metrics.jsonl", threading.Event()
    path.write_text('{"step": 1, "a": 1.0}\n{"step": 2, "a"')
    rows = followed_rows(path, is_over)
    assert rows_now(rows) == [{"step": 1, "a": 1.0}]
    with path.open("a") as file:
        file.write(': 2.0}\n{"step": 3}\n')
    assert [row["step"] for row in rows_now(rows)] == [2, 3]
    with path.open("a") as file:
        file.write('{"step": 4}\n')
    is_over.set()
    assert [row["step"] for row in rows if row] == [4], "what was written before the end is read"


def test_damaged_lines_are_left_out(tmp_path):
    path, is_over = tmp_path / "metrics.jsonl", threading.Event()
    path.write_bytes(b'[]\n\xff\n{"step": "1"}\n' + b"[" * 100_000 + b'\n{"step": 1}\n')
    is_over.set()
    assert [row for row in followed_rows(path, is_over) if row] == [{"step": 1}]


class WarningStore:
    """Warns whenever it gets a row, and remembers the steps."""

    def __init__(self, category):
        self.category, self.steps = category, []

    def log(self, step, values):
        self.steps.append(step)
        warnings.warn("of the library", self.category, stacklevel=1)

    def finish(self):
        self.steps.append("finished")


@pytest.mark.parametrize("category", [UserWarning, FutureWarning])
def test_user_warning_alone_ends_a_tracker(category):
    store = WarningStore(category)
    rows = [{"step": 1, "a": 1.0}, None, {"step": 2, "a": 2.0}]
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        if category is UserWarning:
            with pytest.raises(TrackerError, match="of the library"):
                send(store, iter(rows), reported)
        else:
            send(store, iter(rows), reported)
        assert reported
    assert store.steps == ([1] if category is UserWarning else [1, 2, "finished"])


def test_numbers_have_the_names_that_tensorboard_shows():
    row = {"step": 3, "phase": 1, "train/loss": 2.0, "train/trust_ratio/all": {"min": 1.0, "max": 3.0}, "none": None}
    assert flat(row) == {
        "progress/phase": 1,
        "train/loss": 2.0,
        "train/trust_ratio/all/min": 1.0,
        "train/trust_ratio/all/max": 3.0,
    }
