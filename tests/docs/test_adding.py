"""Nothing is added to a registry without a row in its page, a test and a CHANGELOG line (CONTRIBUTING.md)."""

import re

import pytest
from docs.registries import REGISTRIES, ROOT, lacking

from megabert.downstream.finetuning.tasks import TASKS
from megabert.settings.config.families import FAMILIES

PLANTED = "quuxify"
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
NAMED = re.findall(r"^\| `(\w+)` \| `([\w/]+\.py)` \|", PAGE, re.MULTILINE)
"""Tables that the page names, and their files."""
TABLE = re.compile(
    r"^(DOCUMENT_RULES|LINE_RULES|MASKS(?=:)|OPTIMIZERS|UNCLIPPED|TASKS|FAMILIES|KEY_MAPS|CONFIG_FIELDS|ARCHITECTURES"
    r"|WITHOUT_ANSWERS|FREE_ON_RESUME|\w+_NEEDS)\b",
    re.MULTILINE,
)


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
