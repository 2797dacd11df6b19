import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from support.soak import in_soak

from megabert import cli
from megabert.cli import PROGRAM
from megabert.distributed import meeting


def test_no_command_shows_the_table_as_an_error(megabert):
    assert "pretrain" in megabert(code=2).err


def test_unknown_command_names_the_nearest(megabert):
    assert "did you mean pretrain?" in megabert("pretrian", code=2).err


@pytest.mark.parametrize("flag", [["--local_rank=1"], ["--local_rank", "1"]])
def test_local_rank_is_accepted_anywhere(flag, megabert):
    assert "preset: tiny" in megabert(*flag, "pretrain", *flag, "--print-config", *flag).out


PRINTED = [
    ("megabert estimate", ""),
    ("megabert --help", "1"),
    ("megabert embed --help", ""),
    ("data_prep build --input x --output y --print-config", "1"),
]


@pytest.mark.parametrize(
    ("command", "unbuffered"), [*PRINTED, *in_soak(*((command, "" if one else "1") for command, one in PRINTED))]
)
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


def test_process_whose_ranks_have_not_met_ends_without_the_end_of_python(monkeypatch):
    """Python would stop the thread inside torch's store, which aborts: exit code 134 for 143."""
    is_over, exits = threading.Event(), []

    def run(words: list[str]) -> int:
        with pytest.raises(meeting.MeetingError):
            meeting.meet(0, 2, patience_s=0.0)
        return 143

    monkeypatch.setattr(meeting._Meeting, "run", lambda self: is_over.wait())
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "1")
    monkeypatch.setattr(cli, "PROGRAM", SimpleNamespace(run=run))
    monkeypatch.setattr(cli, "leave_out_working_folder", lambda: None)
    monkeypatch.setattr(sys, "argv", ["megabert", "pretrain"])
    monkeypatch.setattr(os, "_exit", exits.append)
    try:
        assert (cli.main(["pretrain"]), exits) == (143, []), "a call from Python ends no process"
        assert (cli.main(), exits) == (143, [143])
    finally:
        is_over.set()


def test_process_leaves_nothing_to_search_at_its_end():
    code = """
import gc, sys
from megabert.cli import main
sys.argv = ["megabert", "--version"]
before = gc.get_freeze_count()
assert main(["--version"]) == 0 and gc.get_freeze_count() == before, "a call from Python changes its process"
assert main() == 0 and gc.get_freeze_count() > before
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
