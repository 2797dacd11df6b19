"""Nothing is added to a registry without a row in its page, a test and a CHANGELOG line (docs/adding.md)."""

import pytest
from docs.registries import REGISTRIES, ROOT, lacking

from megabert.downstream.finetuning.tasks import TASKS
from megabert.settings.config.families import FAMILIES

PLANTED = "quuxify"


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


def test_a_name_inside_another_one_does_not_count():
    assert lacking("recipe", "modernbert_1gp") == [
        "recipe modernbert_1gp: no table of docs/configuration.md has a row of it",
        "recipe modernbert_1gp: no file below tests/unit names it",
        "recipe modernbert_1gp: CHANGELOG.md does not name it",
    ]


def test_the_page_tells_where_each_kind_is_documented():
    page = (ROOT / "docs" / "adding.md").read_text(encoding="utf-8")
    assert all(f"({documented.removeprefix('docs/')})" in page for _, documented in REGISTRIES.values())
