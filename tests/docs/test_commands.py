"""Every megabert command that the documentation shows is one that the program takes."""

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "README.ko.md", *sorted((ROOT / "docs").glob("*.md"))]
LINE = re.compile(
    r"^    (?:\.venv/bin/)?(?P<program>megabert|megabert-data|deepspeed|torchrun) (?P<rest>.*)$", re.MULTILINE
)


def shown_commands() -> list[tuple[str, str, list[str]]]:
    found = []
    for page in PAGES:
        for match in LINE.finditer(page.read_text(encoding="utf-8")):
            words = shlex.split(match["rest"], comments=True)
            found.append((page.name, match["program"], words))
    return found


def megabert_words(program: str, words: list[str]) -> list[str]:
    """Return what megabert itself is given, behind a launcher's own words."""
    return words if program == "megabert" else words[words.index("megabert") + 1 :]


PRETRAIN = [
    (page, given)
    for page, program, words in shown_commands()
    if program != "megabert-data"
    and (given := megabert_words(program, words))[0] == "pretrain"
    and not {"...", "--fork"} & set(given)  # a fork needs the run that it leaves
]


FINETUNE = [
    (page, given)
    for page, program, words in shown_commands()
    if program != "megabert-data"
    and (given := megabert_words(program, words))[0] == "finetune"
    and given[1] != "glue"  # which has no settings of its own
]


def test_documentation_shows_commands():
    assert len(PRETRAIN) >= 4
    assert len(FINETUNE) >= 4


@pytest.mark.parametrize(
    ("page", "words"), FINETUNE, ids=lambda value: " ".join(value) if isinstance(value, list) else value
)
def test_shown_finetuning_command_is_accepted(page, words, capsys):
    from megabert.cli.main import main

    assert main([*words, "--print-config"]) == 0, page
    assert "learning_rate:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("page", "words"), PRETRAIN, ids=lambda value: " ".join(value) if isinstance(value, list) else value
)
def test_shown_pretraining_command_is_accepted(page, words, capsys, monkeypatch, tmp_path):
    from megabert.cli.main import main

    own_file = "cluster.yaml"  # a file of the reader's
    monkeypatch.chdir(tmp_path)
    (tmp_path / own_file).write_text("seed: 7\n")
    assert main([*words, "--print-config"]) == 0, page
    assert "phases:" in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?://)([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name}: {target}"
