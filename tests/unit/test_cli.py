import os
import subprocess
import sys

import pytest

from megabert.cli import PROGRAM


def test_help_lists_every_command(megabert):
    shown = megabert("--help").out
    assert all(verb in shown for verb in PROGRAM.commands)


def test_no_command_shows_the_table_as_an_error(megabert):
    assert "pretrain" in megabert(code=2).err


def test_unknown_command_names_the_nearest(megabert):
    assert "did you mean pretrain?" in megabert("pretrian", code=2).err


@pytest.mark.parametrize("flag", [["--local_rank=1"], ["--local_rank", "1"]])
def test_local_rank_is_accepted_anywhere(flag, megabert):
    assert "preset: tiny" in megabert(*flag, "pretrain", *flag, "--print-config", *flag).out


BUILD = "data_prep build --input x --output y --print-config"


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", ["megabert estimate", "megabert --help", "megabert embed --help", BUILD])
def test_reader_that_has_enough_gets_no_traceback(command, unbuffered):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", *command.split()],
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_help_imports_no_torch():
    """All helps in one process; a verb whose help imports torch is printed."""
    code = f"""
import contextlib, io, sys
from megabert.cli import main
for verb in {["", *PROGRAM.commands]}:
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        main([word for word in (verb, "--help") if word])
    assert "usage" in shown.getvalue().lower(), verb
    if sys.modules.pop("torch", None):
        print(verb or "megabert")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
