"""The tables of config.json's fields hold every field of transformers' classes, and the page shows them."""

import ast
import inspect
from importlib import import_module
from pathlib import Path

import pytest
from transformers import AutoConfig

from megabert.downstream.export.config_fields import CONFIG_FIELDS, Entry, Fixed, Taken, Unused, field_tables
from megabert.settings.config.families import FAMILIES

PAGE = Path(__file__).parents[4] / "docs" / "families" / "config_json.md"
OURS = ("config", "self.config")


def fields_of_transformers(family: str) -> dict[str, object]:
    """Return all fields of a family's class, with their defaults."""
    config = AutoConfig.for_model(FAMILIES[family].model_type or family)
    return {name: value for name, value in {**config.to_dict(), **vars(config)}.items() if not name.startswith("_")}


def names_read_by_the_model(family: str) -> set[str]:
    """Return the names that the code of a family's models reads of its configuration."""
    package = (FAMILIES[family].model_type or family).replace("-", "_")
    module = import_module(f"transformers.models.{package}.modeling_{package}")
    names = set()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in OURS:
            names.add(node.attr)
        is_call = isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr")
        if is_call and ast.unparse(node.args[0]) in OURS and isinstance(node.args[1], ast.Constant):
            names.add(str(node.args[1].value))
    return names


@pytest.mark.parametrize("family", CONFIG_FIELDS)
def test_every_field_of_transformers_is_in_the_table(family):
    assert set(fields_of_transformers(family)) - set(CONFIG_FIELDS[family]) == set()


@pytest.mark.parametrize("family", CONFIG_FIELDS)
def test_every_field_that_the_model_reads_is_in_the_table(family):
    names = names_read_by_the_model(family)
    assert len(names) > 10
    assert names - set(CONFIG_FIELDS[family]) == set()


@pytest.mark.parametrize("family", CONFIG_FIELDS)
def test_defaults_are_those_of_transformers(family):
    theirs, derived = fields_of_transformers(family), {"vocab_size", "layer_types", "rope_parameters"}
    for name, entry in CONFIG_FIELDS[family].items():
        if name in theirs and name not in derived and isinstance(entry, Taken):
            assert theirs[name] == entry.default, name
        if name in theirs and isinstance(entry, Fixed) and not isinstance(entry.value, str):
            assert theirs[name] == (entry.value if entry.default is ... else entry.default), name


def describe(name: str, entry: Entry) -> str:
    """Return the row of a field."""
    match entry:
        case Taken():
            what = f"taken as `{entry.ours}`" if entry.ours else "taken"
        case Fixed():
            what = f"must be `{entry.value!r}`" + (
                "" if entry.default is ... else f"; left out it is {entry.default!r}"
            )
        case Unused():
            what = entry.why if entry.why.startswith("chooses the family") else f"changes nothing: {entry.why}"
    return f"| `{name}` | {what} |"


def rendered() -> str:
    """Return the tables of the page."""
    parts, common = [], field_tables("config_fields.yaml")["_common"]
    for title, table in {"all families": common, **CONFIG_FIELDS}.items():
        rows = [
            describe(name, entry)
            for name, entry in sorted(table.items())
            if title == "all families" or common.get(name) != entry
        ]
        parts += [f"## {title}", "", "| field | |", "|---|---|", *rows, ""]
    return "\n".join(parts).rstrip() + "\n"


def test_the_page_shows_the_tables():
    """`python -m pytest THIS_FILE` fails after a change; PAGE is then written with `rendered()`."""
    assert PAGE.read_text().partition("\n## ")[2] == rendered().partition("## ")[2]
