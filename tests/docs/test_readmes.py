"""The READMEs: times of recipes as `megabert estimate` predicts them, and the same commands in both."""

import json
import re
from pathlib import Path

import pytest

from megabert.cli import PROGRAM

ROOT = Path(__file__).parents[2]
READMES = ("README.md", "README.ko.md")
ROW = re.compile(r"^\| `(\w+)` \| (\d+) x (\w+) \| ([\d.]+) h \|", re.MULTILINE)


@pytest.mark.parametrize("page", READMES)
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


def shown_lines(name: str) -> list[str]:
    """Return the lines of the code blocks, comments cut off."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return [line.split("  # ")[0].strip() for line in re.findall(r"^    (\S.*)$", text, re.MULTILINE)]


def test_both_readmes_show_the_same_commands():
    english, korean = shown_lines("README.md"), shown_lines("README.ko.md")
    assert english[:2] == ["make demo", "make test"]
    assert korean == english, "README.ko.md: bring its code blocks in line with README.md"


def test_korean_readme_links_to_what_the_english_one_links_to_and_to_korean_pages():
    english, korean = (set(re.findall(r"\]\(([^)]+)\)", (ROOT / name).read_text(encoding="utf-8"))) for name in READMES)
    assert [link for link in korean - english if not link.endswith(".ko.md")] == ["README.md"]


def test_both_readmes_name_the_same_requirements():
    english, korean = ((ROOT / name).read_text(encoding="utf-8").split("\n## ")[2] for name in READMES)
    words = re.compile("`[^`]+`|MPI|GPU|CPU|gcc|[0-9.]+ GB")
    assert {*words.findall(korean)} == {*words.findall(english)}
