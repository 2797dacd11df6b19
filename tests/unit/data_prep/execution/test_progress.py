import re

import pytest
from support.processes import wait_for

from data_prep.execution import progress as module
from data_prep.execution.progress import TOKENS, UnitProgress, say_stage


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets."""
    seconds = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: seconds[0])
    return seconds


def test_lines_tell_units_rate_and_time_left(clock, capsys):
    progress = UnitProgress("tokenize", 40, TOKENS)
    for seconds in (30.0, 2.0, 2.0, 2.0):
        clock[0] += seconds
        progress.advance({"tokens": 9_000_000})
    lines = capsys.readouterr().err.splitlines()
    # The first unit takes as long as compiling does: it is told without a guess, and not held against the others.
    assert lines[0] == "tokenize: 1/40 units (2%), 0.3 Mtokens/s, 30.0 s"
    assert lines[1] == "tokenize: 4/40 units (10%), 1.0 Mtokens/s, 01:12 left, 36.0 s"
    progress.close()
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("skipped", "seconds", "said"),
    [(0, 30.0, "index: 1/1 units, 30.0 s\n"), (2, 0.0, "index: 3/3 units, 2 done before, 0.0 s\n")],
)
def test_last_line_is_printed_once_with_units_done_before(clock, capsys, skipped, seconds, said):
    progress = UnitProgress("index", skipped + 1)
    progress.skip(skipped)
    clock[0] += seconds
    progress.advance({})
    progress.close()
    assert capsys.readouterr().err == said


def test_time_left_waits_until_each_worker_has_started(clock, capsys):
    progress = UnitProgress("tokenize", 100, workers=2)
    for seconds in (30.0, 10.0, 1.0, 1.0):  # both workers compile
        clock[0] += seconds
        progress.advance({})
    clock[0] += 5.0
    progress.advance({})
    lines = capsys.readouterr().err.splitlines()
    progress.close()
    assert [line for line in lines if "left" in line] == ["tokenize: 5/100 units (5%), 03:41 left, 47.0 s"]


def test_long_unit_shows_that_time_passes(clock, capsys):
    with UnitProgress("vocabulary", 1):
        clock[0] += 25.0
        assert wait_for(lambda: capsys.readouterr().err) == "vocabulary: 0/1 units, 25.0 s\n"


def test_terminal_shows_a_bar(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    progress = UnitProgress("index", 2)
    assert "\rindex: 0/2 units, 0.0 s |" in capsys.readouterr().err
    progress.advance({})
    progress.advance({})
    progress.close()
    assert re.search(r"\rindex: 2/2 units, \d\.\d s \|\S+\|", capsys.readouterr().err)


def test_stage_of_a_long_unit_is_a_line_that_a_bar_is_cleared_for(monkeypatch, capsys):
    say_stage("vocabulary: words are counted")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    say_stage("vocabulary: pieces are learned")
    assert capsys.readouterr().err == "vocabulary: words are counted\n\r\x1b[Kvocabulary: pieces are learned\n"
