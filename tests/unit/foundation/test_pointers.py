"""Error messages point to sections of docs/troubleshooting.md that exist."""

import ast
import pickle
import re
from pathlib import Path

from megabert.foundation.errors import GUIDE, CheckpointError

ROOT = Path(__file__).parents[3]


def anchors() -> list[str]:
    """Return the anchors that GitHub and MyST make of the page's headings."""
    headings = re.findall(r"^## (.+)$", (ROOT / GUIDE).read_text(encoding="utf-8"), re.MULTILINE)
    return [re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings]


def pointers() -> dict[str, list[str]]:
    """Return what is given as ``see=`` anywhere in the packages, with the files."""
    anchors_used: dict[str, list[str]] = {}
    for path in [*(ROOT / "megabert").rglob("*.py"), *(ROOT / "data_prep").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "see":
                for value in ast.walk(node.value):
                    if isinstance(value, ast.Constant) and isinstance(value.value, str) and "-" in value.value:
                        anchors_used.setdefault(value.value, []).append(str(path))
    return anchors_used


def test_headings_are_unique():
    assert len(anchors()) == len(set(anchors()))


def test_pointers_lead_to_sections():
    used = pointers()
    assert len(used) >= 12
    assert {anchor: files for anchor, files in used.items() if anchor not in anchors()} == {}


def test_message_ends_with_its_pointer_on_every_rank():
    error = pickle.loads(pickle.dumps(CheckpointError("x: full.", see="a-checkpoint-cannot-be-written")))
    assert str(error) == f"x: full.\n  More: {GUIDE}#a-checkpoint-cannot-be-written"
    assert str(CheckpointError("x: full.")) == "x: full."
