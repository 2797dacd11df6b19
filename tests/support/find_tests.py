"""Prints the tests of a module, for ``make test FILE=``: ``python tests/support/find_tests.py megabert/optim/lamb.py``.

A module's tests lie at its mirrored place, or a row of the table in tests/README.md names them.
"""

import fnmatch
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (?P<modules>`.+?) \| (?P<tests>`.+?) \| (?P<reason>[^|]+) \|$", re.MULTILINE)
INTERPRETED = re.compile(r"interpreted/kernels_(\w+)\.py$")
RUN = r"test_interpreted_kernels.py::test_kernels_match_their_references_in_the_interpreter[\1]"
"""What runs a file in Triton's interpreter."""


def modules() -> list[str]:
    """Return the paths of all modules, without those that only make a folder a package or a program."""
    files = [path for package in ("megabert", "data_prep") for path in (ROOT / package).rglob("*.py")]
    return sorted(str(path.relative_to(ROOT)) for path in files if path.name not in ("__init__.py", "__main__.py"))


def own_tests(module: str) -> list[Path]:
    """Return where a module's test may be: at its mirrored place, or at that of its folder."""
    path = Path("tests/unit") / module.removeprefix("megabert/")
    return [path.with_name(f"test_{path.name}"), path.parent.with_name(f"test_{path.parent.name}.py")]


def rows() -> list[tuple[list[str], list[str]]]:
    """Return the patterns of modules and the paths of tests of each row of the table."""
    table = (ROOT / "tests" / "README.md").read_text(encoding="utf-8").split("## Modules without")[1]
    return [
        (re.findall(r"`([^`]+)`", row["modules"]), re.findall(r"`([^`]+)`", row["tests"]))
        for row in ROW.finditer(table)
    ]


def find_tests(module: str) -> list[str]:
    """Return the paths of a module's test files, or none if it is no module."""
    if own := [str(path) for path in own_tests(module) if (ROOT / path).is_file()]:
        return own
    named = [
        path
        for patterns, tests in rows()
        for path in tests
        if any(fnmatch.fnmatch(module, pattern) for pattern in patterns)
    ]
    return [f"tests/{INTERPRETED.sub(RUN, path)}" for path in dict.fromkeys(named)]


def main() -> None:
    """Print the tests, one after the other."""
    module = os.path.relpath(sys.argv[1], ROOT)
    if not (module in modules() and (tests := find_tests(module))):
        sys.exit(f"{sys.argv[1]}: no module of megabert or data_prep, such as megabert/optim/lamb.py.")
    print(*tests)


if __name__ == "__main__":
    main()
