import os
import subprocess
import sys
from pathlib import Path

import pytest

from megabert.settings.command_line import safe_path

PLANTED = ("json", "pickle", "random", "tempfile", "argparse", "yaml")
PLANTED_CODE = "open('executed', 'a').write(__name__ + ' ')\nraise SystemExit(9)\n"
STARTS_PYTHON = """
from megabert.settings.command_line.safe_path import leave_out_working_folder

if __name__ == "__main__":
    leave_out_working_folder()
    import json, multiprocessing, pickle, random, subprocess, sys, tempfile, yaml
    subprocess.run([sys.executable, "-c", "import json, pickle, random"], check=True)
    subprocess.run([sys.executable, "-m", "json.tool"], input="{}", text=True, check=True)
    with multiprocessing.get_context("spawn").Pool(1) as pool:  # and the process that tracks its resources
        print(pool.map(abs, [-1]))
"""


@pytest.fixture
def planted(tmp_path, monkeypatch) -> Path:
    """A working folder with files named like modules; nothing of the kind is to be executed."""
    folder = tmp_path / "working"
    folder.mkdir()
    for name in PLANTED:
        (folder / f"{name}.py").write_text(PLANTED_CODE)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{safe_path.ROOT}")
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    return folder


def run(*words: str) -> str:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=60, check=True).stdout


def test_negative_control(planted):
    with pytest.raises(subprocess.CalledProcessError):
        run("-m", "timeit", "import json")
    assert (planted / "executed").read_text() == "json "


def test_a_process_and_its_children_import_nothing_from_the_working_folder(planted):
    (planted.parent / "starts_python.py").write_text(STARTS_PYTHON)
    assert "[1]" in run("-m", "starts_python")
    assert not (planted / "executed").exists()


@pytest.mark.parametrize("command", ["megabert estimate", "data_prep peek --help"])
def test_both_programs_import_nothing_from_the_working_folder(planted, command):
    run("-m", *command.split())
    assert not (planted / "executed").exists()


def test_checkout_that_is_not_installed_can_be_the_working_folder(monkeypatch):
    monkeypatch.chdir(safe_path.ROOT)
    monkeypatch.setattr(sys, "path", [safe_path.ROOT, "/usr/lib/python3"])
    monkeypatch.setenv("PYTHONPATH", "/mine::")
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    safe_path.leave_out_working_folder()
    assert sys.path == ["/usr/lib/python3", safe_path.ROOT]
    assert os.environ["PYTHONPATH"] == f"/mine{os.pathsep}{safe_path.ROOT}"


def test_working_folder_may_be_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "/mine")
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    safe_path.leave_out_working_folder()
    monkeypatch.chdir("/")
    assert os.environ["PYTHONPATH"] == "/mine"
