"""Counts habits of English that make sentences hard to read, by kind and by who reads them.

    python benchmarks/reading/habits.py               counts of this tree
    python benchmarks/reading/habits.py --rev REV     counts of a commit
    python benchmarks/reading/habits.py --list KIND   every place of one kind ("all": of all)
    python benchmarks/reading/habits.py --check       exit 1 if a message has one, or prose or docs more than before
    python benchmarks/reading/habits.py --lower       lower the recorded counts to those of this tree

A *message* is what a user reads: help texts, field docstrings of a configuration (they are shown by ``--help``), logged
lines and errors. *Prose* is docstrings, comments and names; *docs* is Markdown. Of these two, ``habits.json`` has the
most places of each kind that there may be. Only ``--lower`` writes it, and it never writes a larger number.
"""

import argparse
import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

COUNTED = (
    r"one|two|three|bytes|numbers?|tokens|instances|rows|keys?|seconds|milliseconds|ms|s|MB|GB|KiB|MiB|GiB|files|steps|"
    r"programs?|units|requests|times|hours|elements|copies|words"
)
UNITS = (
    r"token|instance|row|core|step|second|rank|worker|shard|query|key|head|layer|parameter|line|file|unit|bucket|program|"
    r"multiprocessor|thread|node|process|request|sequence|document|batch|chunk|epoch|pass|phase|word|piece|stage|day|hour|"
    r"run|micro-step|micro-batch|GPU|card|element|column|position|task|op|kernel|split|length|part|update|block"
)
KINDS = {
    "behind": re.compile(r"\bbehind\b", re.IGNORECASE),
    "where for if": re.compile(
        r"\b(?:none|nothing|empty|absent|zero|0|1|true|false) where\b|"
        r"\bwhere (?:there (?:is|are|was)|it (?:is|has|can|does)|they|nothing|nobody|no|none|not|that (?:is|fails))\b",
        re.IGNORECASE,
    ),
    "what-cleft": re.compile(
        r"\bwhat (?:is|are|was|were|it|they|a|an|the|this|each|follows|comes|remains|had|has)\b", re.IGNORECASE
    ),
    "a for per": re.compile(
        rf"\b(?:{COUNTED}) an? (?:{UNITS})\b|_A_(?:[A-Z]+)\b|\b[a-z]+_an?_[a-z]+\b(?=\()",
    ),
    "those that": re.compile(r"\b(?:those (?:that|of|who|whose|which)|whoever|whatever it|that of)\b", re.IGNORECASE),
    "one that": re.compile(r"\bones? (?:that|which|who|whose)\b", re.IGNORECASE),
    "so many": re.compile(r"\b(?:so|as) many\b", re.IGNORECASE),
    "beside": re.compile(r"(?<![a-z])besides?(?![a-z])", re.IGNORECASE),
    # A person may tell ("we cannot tell"); a name, a file or a count says or shows.
    "tells": re.compile(r"\btells?\b(?=[^\w(])", re.IGNORECASE),
    "of-constant": re.compile(r"\b_?OF_[A-Z]"),
}
ERRORS = re.compile(r"Error$|^fail$|^warning$|^info$|^error$|^damaged$|^print$|^add_argument$|^add_parser$|^say$")
CEILINGS = Path(__file__).with_name("habits.json")
SHOWN_BY_HELP = re.compile(r"megabert/settings/config/|data_prep/config/build\.py$")


class Text(NamedTuple):
    """A piece of text and who reads it."""

    reader: str
    path: str
    line: int
    text: str


def main() -> int:
    """Count, list or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rev", help="a commit (default: the files as they are)")
    parser.add_argument("--list", choices=[*KINDS, "all"], help="print each place of this kind")
    parser.add_argument("--check", action="store_true", help="exit 1 if a message has one, or another text too many")
    parser.add_argument("--lower", action="store_true", help="record lower counts as what there may be from now on")
    arguments = parser.parse_args()
    counts: Counter[tuple[str, str]] = Counter()
    for text in texts(arguments.rev):
        for kind, pattern in KINDS.items():
            found = list(pattern.finditer(text.text))
            counts[kind, text.reader] += len(found)
            wanted = arguments.list in (kind, "all") or (arguments.check and text.reader == "message")
            for match in found if wanted else ():
                line = text.line + text.text.count("\n", 0, match.start())
                start = max(0, match.start() - 50)
                print(f"{text.path}:{line}: {kind}: {' '.join(text.text[start : match.end() + 50].split())}")
    print(f"{'habit':14}{'message':>9}{'prose':>9}{'docs':>9}", file=sys.stderr)
    for kind in KINDS:
        print(f"{kind:14}" + "".join(f"{counts[kind, r]:9}" for r in ("message", "prose", "docs")), file=sys.stderr)
    if arguments.lower:
        lower = {
            kind: {reader: min(most, counts[kind, reader]) for reader, most in ceilings.items()}
            for kind, ceilings in _ceilings().items()
        }
        CEILINGS.write_text(json.dumps(lower, indent=2) + "\n")
    return int(arguments.check and _is_refused(counts))


def _ceilings() -> dict[str, dict[str, int]]:
    return json.loads(CEILINGS.read_text())


def _is_refused(counts: Counter[tuple[str, str]]) -> bool:
    """Return whether a message has a habit, or prose or docs have more of one than is recorded; print the latter."""
    grown = [
        f"{kind}: {counts[kind, reader]} places in {reader}, at most {most} are allowed: --list {kind!r} shows them"
        for kind, ceilings in _ceilings().items()
        for reader, most in ceilings.items()
        if counts[kind, reader] > most
    ]
    print(*grown, sep="\n", end="\n" if grown else "")
    return bool(grown) or any(counts[kind, "message"] for kind in KINDS)


def texts(revision: str | None) -> Iterator[Text]:
    """Yield all text of a tree."""
    for path in _git("ls-tree", "-r", "--name-only", revision or "HEAD").splitlines():
        if revision is None and not Path(path).exists():
            continue
        is_code = path.startswith(("megabert/", "data_prep/")) and path.endswith(".py")
        is_page = path.endswith(".md") and (path.startswith("docs/") or "/" not in path)
        if not is_code and (not is_page or path.endswith(".ko.md")):
            continue
        content = _git("show", f"{revision}:{path}") if revision else Path(path).read_text(encoding="utf-8")
        yield from python_texts(path, content) if is_code else [Text("docs", path, 1, content)]


def python_texts(path: str, content: str) -> Iterator[Text]:
    """Yield docstrings, comments and messages of a file."""
    tree = ast.parse(content)
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and SHOWN_BY_HELP.search(path)]
    # The string after a field of a configuration is its help.
    shown = {id(text) for body in bodies for field, text in pairwise(body) if isinstance(field, ast.AnnAssign)}
    if "/commands/" in path:  # the docstring of a command is its help
        shown |= {id(node) for node in tree.body[:1]}
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield Text("message" if id(node) in shown else "prose", path, node.lineno, node.value.value)
        if isinstance(node, ast.Call) and ERRORS.search(_name(node.func)):
            words = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
            yield Text("message", path, node.lineno, " ".join(word for word in words if isinstance(word, str)))
    for token in tokenize.generate_tokens(io.StringIO(content).readline):
        if token.type in (tokenize.COMMENT, tokenize.NAME):
            yield Text("prose", path, token.start[0], token.string)


def _name(function: ast.expr) -> str:
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
