"""The program takes every megabert command that the documentation shows, and git ignores what they write."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from data_prep.cli import PROGRAM as DATA_PROGRAM
from data_prep.config.build import BuildConfig
from megabert.cli import PROGRAM, main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "README.ko.md", *sorted((ROOT / "docs").glob("*.md"))]
LINE = re.compile(r"^    (?:\.venv/bin/)?(?P<program>megabert|megabert-data|deepspeed|torchrun) (?P<rest>.*)$", re.M)
FILE = re.compile(r"^```yaml\n(?P<text># (?P<name>\S+\.yaml)\n.*?)^```", re.MULTILINE | re.DOTALL)


def shown_commands() -> list[tuple[str, str, list[str]]]:
    found = []
    for page in PAGES:
        for match in LINE.finditer(page.read_text(encoding="utf-8")):
            words = shlex.split(match["rest"], comments=True)
            until = words.index("&&") if "&&" in words else len(words)  # what a shell does next
            found.append((page.name, match["program"], words[:until]))
    return found


def megabert_words(program: str, words: list[str]) -> list[str]:
    """Return megabert's own words of a command, those after a launcher's."""
    return words if program == "megabert" else words[words.index("megabert") + 1 :]


def named(value: object) -> object:
    return " ".join(value) if isinstance(value, list) else value


DATA = [(page, words) for page, program, words in shown_commands() if program == "megabert-data"]
SHOWN = [
    (page, megabert_words(program, words)) for page, program, words in shown_commands() if program != "megabert-data"
]
NEEDED = ("--fork", "--init-from")
"""Flags that name a run or a model of the reader's, which has to be there."""
PRETRAIN = [(page, words) for page, words in SHOWN if words[0] == "pretrain" and not {"...", *NEEDED} & set(words)]
FINETUNE = [(page, words) for page, words in SHOWN if words[0] == "finetune"]
OTHERS = [
    (page, words)
    for page, words in SHOWN
    if words[0] not in ("pretrain", "finetune") or ("--init-from" in words and words[0] == "pretrain")
]


def test_documentation_shows_every_command():
    assert {words[0] for _, words in SHOWN} == set(PROGRAM.commands)
    assert {words[0] for _, words in DATA} >= {"build", "vocab", "verify", "stats", "peek"}
    assert len(PRETRAIN) >= 4
    assert len(FINETUNE) >= 4


@pytest.mark.parametrize(("page", "words"), OTHERS, ids=named)
def test_shown_command_is_accepted(page, words):
    _, options = PROGRAM.parse(words[0], words[1:])
    if words[0] == "estimate" and options.fields and not set(NEEDED) & set(words):
        assert main(words) in (0, 3), page  # it works, or lacks the reader's data


@pytest.mark.parametrize(("page", "words"), DATA, ids=named)
def test_shown_data_command_is_accepted(page, words):
    _, options = DATA_PROGRAM.parse(words[0], words[1:])
    assert options.fields.keys() <= set(BuildConfig.__pydantic_fields__)


@pytest.mark.parametrize(("page", "words"), FINETUNE, ids=named)
def test_shown_finetuning_command_is_accepted(page, words, megabert):
    assert "learning_rate:" in megabert(*words, "--print-config").out


@pytest.mark.parametrize(("page", "words"), PRETRAIN, ids=named)
def test_shown_pretraining_command_is_accepted(page, words, megabert, monkeypatch, tmp_path):
    own_file = "cluster.yaml"  # a file of the reader's
    monkeypatch.chdir(tmp_path)
    (tmp_path / own_file).write_text("seed: 7\n")
    (tmp_path / "examples").symlink_to(ROOT / "examples")  # commands are run in the checkout
    for path in PAGES:
        if path.name == page:
            for shown in FILE.finditer(path.read_text(encoding="utf-8")):
                (tmp_path / shown["name"]).write_text(shown["text"], encoding="utf-8")
    assert "phases:" in megabert(*words, "--print-config").out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?://)([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name}: {target}"


WRITING_PAGES = [*ROOT.glob("README*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("slurm/*.sh")]
FLAG = re.compile(r"--(?:output|output-dir|run-dir|html|png|local-dir)[ =](?!\w+://)([a-z][\w./-]*)")
DEFAULT = re.compile(r"^(?:OUTPUT|DATA|RUN_DIR)=\$\{\w+:-([a-z][\w./-]*)", re.MULTILINE)
FOLDER = re.compile(r"Path\(\"([a-z]\w*)\"\)\.mkdir")


def test_outputs_of_documented_commands_are_ignored():
    texts = [page.read_text(encoding="utf-8") for page in WRITING_PAGES]
    written = {name for text in texts for pattern in (FLAG, DEFAULT, FOLDER) for name in pattern.findall(text)}
    assert {"data/demo", "runs/mrpc", "raw", "report.html"} <= written
    paths = sorted(f"{name}/x" if "." not in name else name for name in {*written, "pretrain-17.log", "models/a"})
    ignored = subprocess.run(["git", "check-ignore", *paths], cwd=ROOT, capture_output=True, text=True, check=False)
    assert set(paths) - set(ignored.stdout.splitlines()) == set()
