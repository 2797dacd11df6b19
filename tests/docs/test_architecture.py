"""The map of the code names files that are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE = re.compile(r"(?<![\w*./])((?:\w+/)*[a-z]\w*\.py)\b")


def test_every_file_that_the_architecture_names_exists():
    """In the pictures a path may begin inside megabert/ or data_prep/."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    packages = (ROOT / "megabert", ROOT / "data_prep")
    files = [str(path.relative_to(ROOT)) for package in packages for path in package.rglob("*.py")]
    names = set(FILE.findall(text))
    assert names
    assert not [name for name in names if not any(f"/{file}".endswith(f"/{name}") for file in files)]


def test_every_room_of_the_table_exists_and_none_is_left_out():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.split("## Rooms")[1].split("## What is on disk")[0]
    rooms = set(re.findall(r"`((?:megabert|data_prep)/\w+)`", table))
    there = {
        f"{package}/{path.name}"
        for package in ("megabert", "data_prep")
        for path in (ROOT / package).iterdir()
        if (path / "__init__.py").is_file() and path.name not in ("recipes", "commands")
    }
    assert there <= rooms
    assert all((ROOT / room).is_dir() for room in rooms)


def test_every_file_of_compiled_loops_is_in_the_table_of_what_they_go_by():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.split("## What compiled loops go by")[1].split("## Glossary")[0]
    loops = [path.stem for package in ("megabert", "data_prep") for path in (ROOT / package).rglob("*_loops.py")]
    assert loops
    assert not [name for name in loops if f"`{name}`" not in table]
