"""Nothing is added to a registry without a row in its page, a test and a CHANGELOG line (CONTRIBUTING.md)."""

import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import get_args

import pytest

from data_prep.config.cleaning import CleaningRule
from megabert.downstream.finetuning.tasks import TASKS
from megabert.settings.config.families import FAMILIES
from megabert.settings.config.loading import shipped_names
from megabert.settings.config.run import OPTIMIZER_NAMES, OptimizerConfig

ROOT = Path(__file__).parents[2]
REGISTRIES: dict[str, tuple[Iterable[str], str]] = {
    "cleaning rule": (get_args(CleaningRule), "docs/data.md"),
    "optimizer": (OPTIMIZER_NAMES, "docs/optimizers.md"),
    "rule of LAMB": (get_args(OptimizerConfig.__annotations__["lamb_variant"]), "docs/optimizers.md"),
    "task": (TASKS, "docs/finetuning.md"),
    "recipe": (shipped_names("recipe"), "docs/configuration.md"),
    "family": (FAMILIES, "docs/families/index.md"),
}
"""Names in the code by kind, and the page whose tables have a row (or a column) of each."""
PLANTED = "quuxify"
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
NAMED = re.findall(r"^\| `(\w+)` \| `([\w/]+\.py)` \|", PAGE, re.MULTILINE)
"""Tables that the page names, and their files."""
TABLE = re.compile(
    r"^(DOCUMENT_RULES|LINE_RULES|MASKS(?=:)|OPTIMIZERS|UNCLIPPED|TASKS|FAMILIES|KEY_MAPS|CONFIG_FIELDS|ARCHITECTURES"
    r"|WITHOUT_ANSWERS|FREE_ON_RESUME|\w+_NEEDS)\b",
    re.MULTILINE,
)


def lacking(kind: str, name: str) -> list[str]:
    """Return what a name lacks: a table's row, a test that names it, a CHANGELOG line."""
    page = REGISTRIES[kind][1]
    problems = []
    if not any(_names(cell, name) for cell in _headings((ROOT / page).read_text(encoding="utf-8"))):
        problems.append(f"{kind} {name}: no table of {page} has a row of it")
    if not any(_names(path.read_text(encoding="utf-8"), name) for path in (ROOT / "tests" / "unit").rglob("*.py")):
        problems.append(f"{kind} {name}: no file below tests/unit names it")
    if not _names((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), name):
        problems.append(f"{kind} {name}: CHANGELOG.md does not name it")
    return problems


def _names(text: str, name: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) is not None


def _headings(page: str) -> list[str]:
    """Return the first cell of each row of a page's tables, and all cells of a table's first row."""
    lines = ["", *page.splitlines()]
    cells = []
    for before, line in pairwise(lines):
        if line.startswith("|"):
            row = line.split("|")[1:-1]
            cells += row[:1] if before.startswith("|") else row
    return cells


@pytest.mark.parametrize("kind", REGISTRIES)
def test_every_name_is_documented_tested_and_in_the_changelog(kind):
    names, _ = REGISTRIES[kind]
    assert list(names)
    assert [problem for name in names for problem in lacking(kind, name)] == []


@pytest.mark.parametrize("kind", REGISTRIES)
def test_a_planted_name_lacks_all_three(kind):
    page = REGISTRIES[kind][1]
    assert lacking(kind, PLANTED) == [
        f"{kind} {PLANTED}: no table of {page} has a row of it",
        f"{kind} {PLANTED}: no file below tests/unit names it",
        f"{kind} {PLANTED}: CHANGELOG.md does not name it",
    ]


def test_a_task_or_family_that_joins_its_table_is_seen(monkeypatch):
    for kind, table in (("task", TASKS), ("family", FAMILIES)):
        monkeypatch.setitem(table, PLANTED, next(iter(table.values())))
        assert any(PLANTED in problem for name in REGISTRIES[kind][0] for problem in lacking(kind, name))


def test_the_page_links_where_each_kind_is_documented():
    assert all(f"({documented})" in PAGE for _, documented in REGISTRIES.values())


@pytest.mark.parametrize(("table", "file"), NAMED)
def test_each_file_that_the_page_names_has_the_table(table, file):
    assert re.search(rf"^(class )?{table}\b", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)


def test_no_table_that_a_new_entry_needs_is_left_out():
    files = [path for package in ("megabert", "data_prep") for path in (ROOT / package).rglob("*.py")]
    texts = [path.read_text(encoding="utf-8") for path in files]
    found = {name for text in texts for name in TABLE.findall(text)}
    assert {"DOCUMENT_RULES", "BUILD_NEEDS", "CONFIG_FIELDS"} <= found
    assert found <= {name for name, _ in NAMED}
