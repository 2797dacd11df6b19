"""A command in a fork is one of a shell's: its own environment, one process a rank, an exit code, a bound of time."""

import subprocess
from pathlib import Path

import psutil
import pytest
from forked.client import run_command


def run(output: Path, **wishes) -> int:
    return run_command("forked.rank_program", ["WHAT"], output, **wishes)


def test_each_command_has_the_environment_of_its_time(tmp_path, monkeypatch):
    for value in ("a", "b"):
        monkeypatch.setenv("WHAT", value)
        assert run(tmp_path / "out") == 0
    monkeypatch.delenv("WHAT")
    assert run(tmp_path / "out") == 0
    assert (tmp_path / "out").read_text() == "".join(f"rank 0 of 1: {value}\n" for value in ("a", "b", None))


def test_ranks_are_processes_and_the_one_that_fails_gives_the_code(tmp_path):
    assert run(tmp_path / "out", ranks=2) == 1
    assert sorted((tmp_path / "out").read_text().splitlines()) == ["rank 0 of 2: None", "rank 1 of 2: None"]


def test_command_that_takes_too_long_is_killed_with_its_ranks(tmp_path, monkeypatch):
    monkeypatch.setenv("SLEEP", "yes")
    with pytest.raises(subprocess.TimeoutExpired):
        run(tmp_path / "out", ranks=2, timeout_s=4)
    pids = [int(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert len(pids) == 2
    killed = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    assert psutil.wait_procs(killed, timeout=10)[1] == []
