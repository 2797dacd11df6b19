"""The times in the READMEs' tables of recipes are what `megabert estimate` predicts."""

import json
import re
from pathlib import Path

import pytest

from megabert.cli import PROGRAM

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `(\w+)` \| (\d+) x (\w+) \| ([\d.]+) h \|", re.MULTILINE)


@pytest.mark.parametrize("page", ["README.md", "README.ko.md"])
def test_times_of_recipes_are_those_of_the_estimate(page, capsys):
    rows = ROW.findall((ROOT / page).read_text(encoding="utf-8"))
    assert len(rows) == 5
    for recipe, gpus, gpu, hours in rows:
        assert PROGRAM.run(["estimate", "--recipe", recipe, "--gpu", gpu, "--gpus", gpus, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["hours"] == pytest.approx(float(hours), abs=0.06)


def test_files_to_read_first_exist():
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## The code in five files")[1].split("\n## ")[0]
    files = re.findall(r"^\| \[([\w/.]+)\]\(\1\)", section, re.MULTILINE)
    assert len(files) == 5
    assert [file for file in files if not (ROOT / file).is_file()] == []
