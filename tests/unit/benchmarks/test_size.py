"""A room that has grown is refused, and recorded only with words of the CHANGELOG that name the feature."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def size(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "reading"))
    monkeypatch.chdir(ROOT)
    import size

    sizes = {**size.sizes_of_tree(), "megabert/optim": 1}
    monkeypatch.setattr(size, "RECORD", tmp_path / "size.json")
    size.RECORD.write_text(json.dumps({"grown_for": [], "rooms": sizes}))
    return size


def test_a_room_that_grew_is_refused_by_name(size, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["size.py"])
    assert size.main() == 1
    assert capsys.readouterr().out.startswith("megabert/optim: ")


def test_a_larger_size_is_recorded_with_words_of_the_changelog_alone(size, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["size.py", "--record", "--for", "a feature that is nowhere"])
    with pytest.raises(SystemExit, match="words of CHANGELOG"):
        size.main()
    assert json.loads(size.RECORD.read_text())["rooms"]["megabert/optim"] == 1
    monkeypatch.setattr(sys, "argv", ["size.py", "--record", "--for", "megabert-data estimate"])
    assert size.main() == 0
    recorded = json.loads(size.RECORD.read_text())
    assert recorded["grown_for"] == ["megabert-data estimate"]
    assert recorded["rooms"] == size.sizes_of_tree()
