"""Lines of progress: percent, and the time that is left."""

import pytest

from megabert.observability import progress as module
from megabert.observability.progress import Progress, seconds_left, span
from megabert.settings.config.loading import load_run_config


@pytest.fixture
def lines(monkeypatch):
    """Messages of the logger, which are collected."""
    messages: list[str] = []
    monkeypatch.setattr(module.logger, "log", lambda level, text, *values: messages.append(text % values))
    return messages


def test_work_that_reports_nothing_gets_a_line_now_and_then(monkeypatch, lines):
    seconds = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: seconds[0])
    with Progress(title="dev", total=1000, unit="example") as progress:
        for _ in range(4):
            seconds[0] += 15.0
            progress.advance(100, is_reported=False)
    assert lines == [
        "dev example 200/1,000 (20%): 7 examples/s, 2.0 min left",
        "dev example 400/1,000 (40%): 7 examples/s, 90 s left",
    ]


def test_report_tells_percent_and_time_left(lines):
    Progress(title="phase1", total=300, is_main=True).report(100, "loss 7.5", left_s=7200.0)
    Progress(title="phase1", total=300, is_main=False).report(100, "loss 7.5")
    assert lines == ["phase1 step 100/300 (33%): loss 7.5, 2.0 h left"]


def test_time_left_counts_later_phases_by_their_length():
    config = load_run_config("debug")  # 1,300 steps of 32 at 128, then 60 of 16 at 512
    assert seconds_left(config, 0, 1200, 32.0) == 100 + 60 * 16 / 32 * 4
    assert seconds_left(config, 1, 50, 16.0) == 10


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (119, "119 s"), (120, "2.0 min"), (86_400, "24.0 h"), (2e8, "2,314.8 days")]
)
def test_span_takes_the_largest_unit_of_two(seconds, text):
    assert span(seconds) == text
