"""Reports, figures and counts that pages show are those that the program prints."""

import json
import re
import shlex
from pathlib import Path

import pytest
from unit.data_prep.test_language_builds import documents_of

from data_prep.checks.stats import describe_corpus
from data_prep.cli import main

ROOT = Path(__file__).parents[2]
CORPUS = {
    "documents": 14_691,
    "validation_documents": 966,
    "sentences": 199_320,
    "tokens": 5_724_262,
    "unknown_tokens": 0,
    "tokens_read": 5_724_262,
    "documents_by_source": {"bills": 45_341, "speeches": 2_927},
    "kept_documents_by_source": {"bills": 11_764, "speeches": 2_927},
    "tokens_by_source": {"bills": 2_751_027, "speeches": 2_973_235},
    "dropped": {},
}


@pytest.mark.parametrize("page", ["your_text.md", "tutorial.ko.md"])
def test_tutorial_shows_the_sources_as_stats_does(page):
    shown = (ROOT / "docs" / page).read_text(encoding="utf-8")
    printed = describe_corpus(CORPUS)
    table = [line for line in printed if re.match(r"(source|bills|speeches)\s", line)]
    assert len(table) == 3
    assert "\n".join(table) in shown


def test_cost_of_the_own_modernbert_is_that_of_its_own_command(tmp_path, monkeypatch, megabert_data):
    page = (ROOT / "docs" / "your_text.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    Path("build.yaml").write_text(re.search(r"# build\.yaml\n(.*?)```", page, re.DOTALL)[1], encoding="utf-8")
    command = re.search(r"^    megabert-data (estimate .*)$", page, re.MULTILINE)[1]
    printed = megabert_data(*shlex.split(command)).out
    minutes = float(re.search(r"^time: ([\d.]+) min", printed, re.MULTILINE)[1])
    peak, end = map(float, re.search(r"disk: ([\d.]+) GB at the peak, ([\d.]+) GB at the end", printed).groups())
    assert f"{minutes:.0f} minutes on 16 cores, {peak:.0f} GB of disk at the peak and {end:.0f} GB at the end" in page


PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")


def rows_of(*languages):
    documents = [(language, *documents_of(language)) for language in languages]
    return [separator.join(sentences) for _, texts, separator in documents for sentences in texts]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The files that the example reads, with its configuration."""
    monkeypatch.chdir(tmp_path)
    for name, texts in (("wiki/a.jsonl", rows_of("ko")), ("web/a.jsonl", rows_of("en", "ja", "zh", "de"))):
        path = Path(name)
        path.parent.mkdir()
        path.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    Path("books").mkdir()
    for number, text in enumerate(rows_of("de")[:4]):
        Path("books", f"{number}.txt").write_text(text, encoding="utf-8")
    block = re.search(r"^    # languages\.yaml\n(?:    .*\n)+", PAGE, re.MULTILINE)[0]
    Path("languages.yaml").write_text(re.sub("^    ", "", block, flags=re.MULTILINE))
    return tmp_path


def test_example_of_languages_prints_the_counts_that_the_page_shows(folder, capsys):
    command = re.search(r"^    megabert-data (build --config languages\.yaml .*)$", PAGE, re.MULTILINE)[1]
    small = "--vocab-size 400 --lengths 32 --dupe-factor 1 --workers 1 --validation-share 0"
    code = main([*shlex.split(command), *small.split()])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    shown = re.findall(r"^    (languages of \w+: .*)$", PAGE, re.MULTILINE)
    assert len(shown) == 3
    assert [line for line in printed.out.splitlines() if line.startswith("languages of")] == shown
    assert "cleaned by language: 12 documents" in printed.out  # the German ones of the web
