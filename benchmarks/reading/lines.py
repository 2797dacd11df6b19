"""Counts the lines of Python in a commit, by kind: ``python benchmarks/reading/lines.py HEAD megabert data_prep``."""

import argparse
import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter


def main() -> None:
    """Print how many lines of code, comments, docstrings and blank ones the files have."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("revision", metavar="REV", help="a commit, such as HEAD")
    parser.add_argument("paths", metavar="PATH", nargs="+", help="folders or files of the commit, such as megabert")
    options = parser.parse_args()
    revision, paths = options.revision, options.paths
    kinds: Counter[str] = Counter()
    for path in _git("ls-tree", "-r", "--name-only", revision, "--", *paths).split():
        if path.endswith(".py"):
            kinds.update(kinds_of(_git("show", f"{revision}:{path}")), files=1)
    print(revision, *paths, dict(kinds))


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], stdout=subprocess.PIPE, text=True)
    if done.returncode:  # git has said why
        sys.exit(done.returncode)
    return done.stdout


def kinds_of(text: str) -> list[str]:
    """Return the kind of each line; one that has code and a comment is code, and a field's string is a docstring."""
    lines = text.splitlines()
    kinds = ["code" if line.strip() else "blank" for line in lines]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            kinds[node.lineno - 1 : node.end_lineno] = ["docstring"] * ((node.end_lineno or 0) - node.lineno + 1)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#"):
            kinds[token.start[0] - 1] = "comment"
    return kinds


if __name__ == "__main__":
    main()
