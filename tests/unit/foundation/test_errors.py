"""Errors: sections of docs/troubleshooting.md that they point to, and the one report of a failure by all ranks."""

import ast
import pickle
import re
from pathlib import Path

import pytest

from megabert.distributed.environments import before_ranks_meet
from megabert.foundation.errors import GUIDE, CheckpointError, ConfigError, Echo, cause_of


def test_echo_travels_between_ranks_with_its_cause():
    cause = CheckpointError("torn", see="every-checkpoint-is-damaged")
    echo = pickle.loads(pickle.dumps(Echo(cause)))
    assert (str(echo), echo.exit_code) == (str(cause), 4)
    assert isinstance(cause_of(echo), CheckpointError)
    assert cause_of(cause) is cause


@pytest.mark.parametrize(("rank", "kind"), [("0", ConfigError), ("1", Echo)])
def test_rank_0_reports_a_wrong_configuration_for_all(monkeypatch, rank, kind):
    for name, value in (("RANK", rank), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    with pytest.raises(kind, match="no such field"), before_ranks_meet():
        raise ConfigError("no such field")


def test_other_ranks_are_silent_about_a_wrong_flag(monkeypatch, megabert):
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    assert not megabert("pretrain", "--recipe", "debug", "--seeed", "1", code=2).err


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
