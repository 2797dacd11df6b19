"""A room that has grown is refused, and recorded only with words of the CHANGELOG that name the feature."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[3]
SIZES = {"megabert/models": 7, "megabert/optim": 2}
"""The sizes of the tree; counting the real one takes seconds."""


@pytest.fixture
def size(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "reading"))
    monkeypatch.chdir(ROOT)
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
