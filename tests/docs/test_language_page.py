"""The example of several languages in docs/data.md: a build takes its file and prints the counts that are shown."""

import json
import re
import shlex
from pathlib import Path

import pytest
from unit.data_prep.test_language_builds import documents_of

from data_prep.cli import main

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
