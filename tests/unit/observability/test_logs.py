"""What is on stderr, and what is in the log of a rank."""

import logging
import warnings

import pytest

from megabert.observability.logs import log_path, log_to_stderr, logger, logging_to_file
from megabert.observability.progress import Progress


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
