"""What is on stderr, and what is in the log of a rank."""

import logging
import re
import warnings
from pathlib import Path

import pytest

from megabert.observability import logs as module
from megabert.observability.logs import (
    Progress,
    log_path,
    log_to_stderr,
    logger,
    logging_to_file,
    quiet,
    seconds_left,
)
from megabert.settings.config.loading import load_run_config


@pytest.fixture(autouse=True)
def _as_before():
    before = (logger.level, logger.propagate, logger.handlers[:])
    yield
    logger.setLevel(before[0])
    logger.propagate, logger.handlers = before[1:]


def logged(folder, rank: int, capsys) -> tuple[str, str]:
    log_to_stderr(rank)
    library = logging.getLogger("DeepSpeed")
    before = library.handlers[:]  # its own, where a test before this one has imported DeepSpeed
    with logging_to_file(folder, rank), warnings.catch_warnings():
        warnings.simplefilter("always")
        logger.info("our word")
        logger.warning("our warning")
        logger.debug("our detail")
        library.info("its chatter")
        library.error("its error")
        warnings.warn("old style", DeprecationWarning, stacklevel=1)
    assert library.handlers == before
    return capsys.readouterr().err, log_path(folder, rank).read_text()


@pytest.mark.parametrize(
    ("level", "shown", "own", "root"),
    [
        ("WARNING", "", "our warning\n", "our warning\n"),
        ("DEBUG", "", "our detail\nour warning\n", "our detail\nour warning\n"),
        ("WARNING", "our warning\n", "", ""),
        ("WARNING", "", None, None),  # no handlers
    ],
)
def test_a_call_keeps_to_the_callers_levels_and_gives_the_logging_back(
    tmp_path, capsys, monkeypatch, level, shown, own, root
):
    files = [logging.FileHandler(tmp_path / name) for name in ("own", "root")]
    log_to_stderr(0)  # an earlier command of this process
    logger.setLevel(level)
    logger.propagate = True
    logger.handlers += files[:1] if own is not None else []
    monkeypatch.setattr(logging.getLogger(), "handlers", files[1:] if root is not None else [])
    before = (logger.level, logger.propagate, logger.handlers[:])
    with quiet(unless=bool(shown)):
        log_to_stderr(0)
        logger.debug("our detail")
        logger.warning("our warning")
    assert (logger.level, logger.propagate, logger.handlers) == before
    assert capsys.readouterr().err == shown
    for file, text in zip(files, (own, root), strict=True):
        file.close()
        assert Path(file.baseFilename).read_text() == (text or "")


@pytest.mark.parametrize("is_captured", [False, True])
def test_warnings_stay_captured_if_the_caller_captures_them(tmp_path, is_captured):
    logging.captureWarnings(is_captured)
    before = warnings.showwarning
    with logging_to_file(tmp_path, 0):
        logging.captureWarnings(True)
    assert warnings.showwarning is before
    logging.captureWarnings(False)


def test_libraries_talk_to_the_file_and_their_errors_to_the_user(tmp_path, capsys):
    shown, file = logged(tmp_path, 0, capsys)
    assert shown.splitlines() == ["our word", "our warning", "DeepSpeed: its error"]
    for text in ("our word", "our detail", "its chatter", "its error", "old style"):
        assert text in file


def test_other_ranks_show_warnings_only(tmp_path, capsys):
    shown, file = logged(tmp_path, 3, capsys)
    assert shown.splitlines() == ["[rank 3] our warning", "DeepSpeed: its error"]
    assert "our word" in file


@pytest.mark.parametrize("is_terminal", [True, False])
def test_interval_is_a_bar_on_a_terminal_and_a_line_elsewhere(tmp_path, capsys, monkeypatch, is_terminal):
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal, raising=False)
    log_to_stderr(0)
    with logging_to_file(tmp_path, 0), Progress(title="phase1", done=4, total=8, is_main=True) as progress:
        progress.advance()
        progress.report(5, "loss 7.5")
    shown = capsys.readouterr().err
    assert ("%|" in shown) is is_terminal
    assert ("phase1 step 5/8 (62%): loss 7.5" in shown) is not is_terminal
    assert "phase1 step 5/8 (62%): loss 7.5" in log_path(tmp_path, 0).read_text()


def test_time_left_is_where_a_narrow_terminal_shows_it(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with Progress(title="phase1", total=8) as progress:
        progress.report(5, "loss 7.5", left_s=30.0)
    assert re.search(r"\D30 s left, loss 7\.5", capsys.readouterr().err)


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
