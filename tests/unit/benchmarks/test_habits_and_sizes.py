"""What `make lint` counts: habits of English, each found by its own kind alone, and the sizes of rooms."""

import json
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

READING = Path(__file__).resolve().parents[3] / "benchmarks" / "reading"
SENTENCES = {
    "behind": ("the position behind this batch", "the position after this batch"),
    "where for if": ("None where there is none", "None if there is none"),
    "what-cleft": ("sum up what the kernel reads", "sum up the kernel's input"),
    "a for per": ("four bytes a token", "four bytes per token"),
    "those that": ("keep those that failed", "keep the failed steps"),
    "one that": ("use the ones that fit", "use the tiles that fit"),
    "so many": ("after so many non-finite steps", "after N consecutive non-finite steps"),
    "beside": ("each score beside its baseline", "each score next to its baseline"),
    "tells": ("tells whether a key is known", "return whether stream.tell() is a known offset"),
    "of-constant": ('OF_RUNS = ("--checkpoint",)', 'RUN_ONLY_FLAGS = ("--checkpoint",)'),
}


@pytest.fixture
def habits(monkeypatch):
    monkeypatch.syspath_prepend(str(READING))
    import habits

    return habits


@pytest.mark.parametrize("kind", SENTENCES)
def test_a_habit_is_found_and_the_plain_words_are_not(habits, kind):
    found, not_found = ({name for name, pattern in habits.KINDS.items() if pattern.search(s)} for s in SENTENCES[kind])
    assert (found, not_found) == ({kind}, set())


def test_every_kind_has_a_sentence_and_a_ceiling(habits):
    assert list(habits.KINDS) == list(SENTENCES) == list(habits._ceilings())


def test_an_error_is_a_message_and_a_docstring_is_prose(habits):
    code = '"""The ones."""\nraise ValueError("use the ones that fit")\n'
    assert {(text.reader, text.text) for text in habits.python_texts("megabert/x.py", code)} >= {
        ("prose", "The ones."),
        ("message", "use the ones that fit"),
    }


@pytest.mark.parametrize("reader", ["message", "prose", "docs"])
def test_one_place_more_than_recorded_is_refused(habits, reader):
    counts = Counter({(kind, name): most for kind, row in habits._ceilings().items() for name, most in row.items()})
    assert not habits._is_refused(counts)
    counts["tells", reader] += 1
    assert habits._is_refused(counts)


SIZES = {"megabert/models": 7, "megabert/optim": 2}
"""The sizes of the tree; counting the real one takes seconds."""


@pytest.fixture
def size(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(READING))
    monkeypatch.chdir(READING.parents[1])
    import size

    monkeypatch.setattr(size, "sizes_of_tree", lambda: SIZES)
    monkeypatch.setattr(size, "RECORD", tmp_path / "size.json")
    size.RECORD.write_text(json.dumps({"grown_for": [], "rooms": SIZES | {"megabert/optim": 1}}))
    return size


def test_a_room_that_grew_is_refused_by_name(size, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["size.py"])
    assert size.main() == 1
    assert capsys.readouterr().out.startswith("megabert/optim: 2 ")


def test_a_larger_size_is_recorded_with_words_of_the_changelog_alone(size, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["size.py", "--record", "--for", "a feature that is nowhere"])
    with pytest.raises(SystemExit, match="words of CHANGELOG"):
        size.main()
    assert json.loads(size.RECORD.read_text())["rooms"]["megabert/optim"] == 1
    monkeypatch.setattr(sys, "argv", ["size.py", "--record", "--for", "megabert-data estimate"])
    assert size.main() == 0
    assert json.loads(size.RECORD.read_text()) == {"grown_for": ["megabert-data estimate"], "rooms": SIZES}


def test_lines_are_counted_by_room_and_words_over_all_pages(size, monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    files = {"megabert/optim/a.py": "x = 1\n\n# why\n", "megabert/b.py": "y = 2\nz = 3\n", "docs/c.md": "two words\n"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(size.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout="\n".join([*files, "gone.py"])))
    assert size.sizes_of_tree() == {"docs (words)": 2, "megabert/b.py": 2, "megabert/optim": 1}
