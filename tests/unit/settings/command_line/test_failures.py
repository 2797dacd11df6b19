"""Exceptions as a shell's user sees them, alike in both programs."""

import errno
import sys
from unittest.mock import Mock

import pytest

from data_prep.cli import main as megabert_data
from megabert.cli import main as megabert
from megabert.foundation.errors import CheckpointError, DataError
from megabert.settings.command_line.failures import exit_code_of

CALLS = {
    "megabert": (megabert, "megabert.commands.watch", ["watch", "RUN"]),
    "megabert-data": (megabert_data, "data_prep.commands.stats", ["stats", "DIR"]),
}


def os_error(number: int) -> OSError:
    return OSError(number, "what the system says", "some/file")


@pytest.fixture(params=CALLS)
def fail(request, monkeypatch, capsys):
    """Return a function that has a command raise an error, and gives its exit code and what stderr says."""
    main, module, words = CALLS[request.param]
    __import__(module)

    def call(error: BaseException) -> tuple[int, str]:
        def run(options):
            raise error

        monkeypatch.setattr(sys.modules[module], "run", run)
        code = main(words)
        shown = capsys.readouterr().err
        assert shown.startswith(f"{request.param}: ")
        return code, shown.removeprefix(f"{request.param}: ")

    return call


Panic = type("PanicException", (BaseException,), {})
"""Stands for pyo3's."""
REMEDIES = {
    errno.EACCES: "permissions",
    errno.EISDIR: "not a folder",
    errno.ENOSPC: "Free space",
    errno.ENAMETOOLONG: "shorter name",
    errno.EIO: "look at its mount",
    errno.EPIPE: "The process that reads it has ended",
    errno.EXDEV: "Check that the path exists",
}


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        *((os_error(number), 3, "DataError: some/file: what the system says. ") for number in REMEDIES),
        (DataError("torn"), 3, "DataError: torn"),
        (CheckpointError("torn"), 4, "CheckpointError: torn"),
        (MemoryError(), 2, "ConfigError: memory is used up"),
        (RecursionError("deep"), 3, "DataError: a file is nested too deeply"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), 3, "DataError: a file is not in"),
        (UnicodeEncodeError("ascii", "\ud55c", 0, 1, "no"), 3, "DataError: '\\ud55c' cannot be written as ascii"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (Panic("out of bounds"), 3, "DataError: a file, perhaps of the tokenizer, cannot be read by its library (out"),
    ],
)
def test_errors_of_the_user_are_one_sentence_with_place_and_remedy(fail, error, code, message):
    found, shown = fail(error)
    assert found == code
    assert shown.startswith(message)
    assert REMEDIES.get(getattr(error, "errno", 0), "") in shown
    assert shown.count("\n") == 1


def test_bug_has_its_traceback(fail):
    code, shown = fail(ZeroDivisionError("x"))
    assert code == 1
    assert shown.startswith("a bug:\nTraceback")
    assert "ZeroDivisionError: x" in shown


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_output_that_nobody_reads_ends_a_command_in_silence(name, monkeypatch, capsys):
    main, module, words = CALLS["megabert"]
    __import__(module)
    monkeypatch.setattr(sys.modules[module], "run", lambda options: print("x", file=getattr(sys, name)))
    monkeypatch.setattr(getattr(sys, name), "write", Mock(side_effect=BrokenPipeError(errno.EPIPE, "Broken pipe")))
    assert main(words) == 141
    monkeypatch.setattr(sys.modules[module], "run", Mock(side_effect=BrokenPipeError(errno.EPIPE, "Broken pipe")))
    assert main(words) == {"stdout": 3, "stderr": 141}[name]


def test_codes_of_a_rank_are_those_of_the_command():
    errors = [os_error(errno.ENOSPC), CheckpointError("x"), MemoryError(), KeyboardInterrupt(), ZeroDivisionError()]
    assert [exit_code_of(error) for error in errors] == [3, 4, 2, 130, 1]
