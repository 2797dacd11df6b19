"""The commands and the code that a page shows, and how a test runs them."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from forked.client import run_command
from forked.server import forget

from data_prep.cli import main as data_main
from megabert.cli import main

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(?P<language>python|yaml|text)\n(?P<code>.*?)^```\n|^    (?P<command>\S[^\n]*)\n", re.M | re.S)


def blocks_of(page: str, section: str = "") -> list[tuple[str, str]]:
    """Return (language, text) of every block but what is printed; of a command the language is ``shell``.

    With ``section``, the heading of a section, only its blocks are returned.
    """
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    if section:
        text = text.split(f"\n## {section}\n")[1].split("\n## ")[0]
    found = BLOCK.finditer(text)
    blocks = [(match["language"] or "shell", match["code"] or match["command"]) for match in found]
    return [(language, text) for language, text in blocks if language != "text"]


def run(line: str, more: Mapping[str, Sequence[str]]) -> None:
    """Run a command, in a process of its own if it starts an engine; ``more`` has further flags by verb."""
    program, verb, *words = shlex.split(line)
    words += more.get(verb, [])
    if program == "pip":
        return
    forget()  # what another page had under the same relative path
    if program == "megabert-data":
        assert data_main([verb, *words]) == 0, line
    elif verb in ("pretrain", "finetune"):
        output = Path(f"{verb}.out").absolute()
        assert run_command(program, [verb, *words], output) == 0, f"{line}\n{output.read_text()[-4000:]}"
    else:
        assert program == "megabert"
        assert main([verb, *words]) == 0, line
