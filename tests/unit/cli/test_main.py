import os
import subprocess
import sys

import pytest

from megabert.cli.main import COMMANDS, main


def test_help_lists_every_command(capsys):
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert all(verb in shown for verb in COMMANDS)


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_command_has_help_with_an_example(verb, capsys):
    with pytest.raises(SystemExit) as exit_:
        main([verb, "--help"])
    assert exit_.value.code == 0
    assert f"megabert {verb}" in capsys.readouterr().out.split("example")[-1]


def test_unknown_command_names_the_nearest(capsys):
    assert main(["pretrian"]) == 2
    assert "did you mean pretrain?" in capsys.readouterr().err


@pytest.mark.parametrize("flag", [["--local_rank=1"], ["--local_rank", "1"]])
def test_local_rank_is_accepted_anywhere(flag, capsys):
    assert main([*flag, "pretrain", *flag, "--print-config", *flag]) == 0
    assert "preset: tiny" in capsys.readouterr().out


def test_errors_become_exit_codes(capsys):
    assert main(["pretrain", "--recipe", "debug", "--seeed", "1"]) == 2
    assert "did you mean seed?" in capsys.readouterr().err
    assert main(["export", "no/such/run", "--to", "x"]) == 4
    assert "no run folder" in capsys.readouterr().err


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", ["megabert estimate", "data_prep build --input x --output y --print-config"])
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
    code = "import sys; from megabert.cli.main import main; main(['--help']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
