"""The Korean README shows the commands of the English one."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def shown_lines(name: str) -> list[str]:
    """Return the lines of the code blocks, comments cut off."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return [line.split("  # ")[0].strip() for line in re.findall(r"^    (\S.*)$", text, re.MULTILINE)]


def test_both_readmes_show_the_same_commands():
    english, korean = shown_lines("README.md"), shown_lines("README.ko.md")
    assert english[:2] == ["make demo", "make test"]
    assert korean == english, "README.ko.md: bring its code blocks in line with README.md"
