"""The map of the code names files that are there."""

import configparser
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
STOREYS = ("tooling", "downstream", "training", "tokens", "settings")
"""Rooms whose row names the rooms inside."""
FILE = re.compile(r"(?<![\w*./])((?:\w+/)*[a-z]\w*\.py)\b")


def test_every_file_that_the_architecture_names_exists():
    """In the pictures a path may begin inside megabert/ or data_prep/."""
    packages = (ROOT / "megabert", ROOT / "data_prep")
    files = [str(path.relative_to(ROOT)) for package in packages for path in package.rglob("*.py")]
    names = set(FILE.findall(TEXT))
    assert names
    assert not [name for name in names if not any(f"/{file}".endswith(f"/{name}") for file in files)]


def rows_of_rooms() -> list[str]:
    table = TEXT.split("## Rooms")[1].split("## What is on disk")[0]
    return [line for line in table.splitlines() if line.startswith("| `")]


def named(row: str) -> list[str]:
    """Return the packages and modules of a row as they are imported."""
    paths = re.findall(r"`([\w/]+(?:\.py)?)`", row.split("|")[1])
    return [path.removesuffix(".py").replace("/", ".") for path in paths]


def layers_of(contract: str) -> dict[str, int]:
    """Return the floor of each room of a contract of ``setup.cfg``, counted from the top."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    floors = config[f"importlinter:contract:{contract}"]["layers"].split("\n")
    return {room.strip(): floor for floor, rooms in enumerate(floors) for room in rooms.split("|") if room.strip()}


@pytest.mark.parametrize("contract", ["layers", "data-prep-layers"])
def test_rooms_stand_in_the_order_of_their_layers(contract):
    layers = layers_of(contract)
    floors = [layers[room] for row in rows_of_rooms() for room in named(row) if room in layers]
    assert len(floors) == len(layers)
    assert floors == sorted(floors)


def test_every_module_and_room_is_in_a_row_and_exists():
    rooms = {room for row in rows_of_rooms() for room in named(row)}
    there = {
        f"{package}.{path.stem}"
        for package in ("megabert", "data_prep")
        for path in (ROOT / package).iterdir()
        if path.name != "__init__.py" and (path.suffix == ".py" or list(path.glob("*.py")) or path.name == "recipes")
    }
    assert rooms == there | {"ds_configs"}  # a third package, without rooms


def test_rows_name_the_rooms_inside_their_room():
    for row in rows_of_rooms():
        for room in set(named(row)) & {f"megabert.{name}" for name in STOREYS}:
            inside = [path.parent.name for path in (ROOT / room.replace(".", "/")).glob("*/__init__.py")]
            assert [name for name in inside if f"`{name}/`" not in row] == []


def test_no_word_of_the_glossary_comes_twice_and_words_ascend():
    words = re.findall(r"^\| ([a-z][\w -]*) \|", TEXT.split("## Glossary")[1], re.MULTILINE)[1:]
    assert len(words) > 30
    assert words == sorted(set(words))


def test_every_file_of_compiled_loops_is_in_the_table_of_what_they_go_by():
    table = TEXT.split("## What compiled loops go by")[1].split("## Glossary")[0]
    loops = [path.stem for package in ("megabert", "data_prep") for path in (ROOT / package).rglob("*_loops.py")]
    assert loops
    assert not [name for name in loops if f"`{name}`" not in table]
