"""What is printed cannot steer a terminal, and every stream takes it."""

import gc
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.soak import in_soak

from megabert.foundation.errors import ConfigError
from megabert.settings.command_line.failures import guarded
from megabert.settings.command_line.terminal import loading, printable, safe_output, unfiltered


def run(work, capsys):
    code = guarded(work, program="megabert", rank_label=str)
    return code, *capsys.readouterr()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2Jname", r"\x1b[2Jname"),
        ("a\x9bb\x7f\r", r"a\x9bb\x7f\r"),
        ("left\u202eright", r"left\u202eright"),
        ("tab\tline\n", "tab\tline\n"),
        ("caf\u00e9 \u0434\u0430", "caf\u00e9 \u0434\u0430"),
    ],
)
def test_controls_are_shown_and_text_stays(text, shown):
    assert printable(text) == shown


def test_prints_errors_and_tracebacks_are_filtered(capsys):
    def fail():
        print("out \x1b[31m")
        print("err \x1b[31m", file=sys.stderr)
        raise FileNotFoundError(2, "No such file", "na\x1b[31mme")

    code, out, err = run(fail, capsys)
    assert code == 3
    assert "\x1b" not in out + err
    assert r"na\x1b[31mme: No such file" in err


def test_the_streams_come_back(capsys):
    before = sys.stdout
    with safe_output():
        assert unfiltered(sys.stdout) is before
    assert sys.stdout is before


def test_an_ascii_stream_takes_every_character(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    assert guarded(lambda: print("\u0436 \udcff"), program="megabert", rank_label=str) == 0
    assert stream.buffer.getvalue() == b"\\u0436 \\udcff\n"


def test_a_full_disk_behind_standard_output_is_named(monkeypatch, capsys):
    class Full(io.StringIO):
        def flush(self):
            raise OSError(28, "No space left on device")

        def fileno(self):
            return os.open(Path(os.devnull), os.O_WRONLY)

    monkeypatch.setattr(sys, "stdout", Full())
    assert guarded(lambda: print("text"), program="megabert", rank_label=str) == 3
    assert "standard output: No space left on device" in capsys.readouterr().err


def test_endless_words_are_shown_in_part(capsys):
    def fail():
        raise OSError(36, "File name too long", "x" * 6000)

    assert len(run(fail, capsys)[2]) < 600


def test_endless_lists_are_shown_with_their_beginning_and_the_remedy(capsys):
    def fail():
        raise ConfigError("\n".join(["these differ:", *(f"  {i:07}" for i in range(500)), "Name another folder."]))

    message = run(fail, capsys)[2]
    assert len(message) < 3200
    assert "these differ:\n  0000000\n" in message
    assert "  ... 2,034 characters more ...\n" in message
    assert message.endswith("  0000499\nName another folder.\n")


@pytest.mark.parametrize("module", ["megabert", "data_prep"])
@pytest.mark.parametrize("redirections", [">&- <&-", *in_soak(">&-", "2>&-")])
def test_closed_streams_are_no_error(redirections, module):
    command = f"{sys.executable} -m {module} estimate --help {redirections}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_imports_are_not_interrupted_by_the_garbage_collector():
    with loading("PyTorch"):
        assert not gc.isenabled()
    assert gc.isenabled()
