"""What megabert can be told by name, and whether each name is documented, tested and in the CHANGELOG."""

import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import get_args

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
