"""Every module of the product has a test file of its name, or a row in tests/README.md that says what tests it."""

import fnmatch
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (?P<modules>`.+?) \| (?P<tests>`.+?) \| (?P<reason>[^|]+) \|$", re.MULTILINE)


def modules() -> list[str]:
    """Return the paths of all modules, without those that only make a folder a package or a program."""
    files = [path for package in ("megabert", "data_prep") for path in (ROOT / package).rglob("*.py")]
    return sorted(str(path.relative_to(ROOT)) for path in files if path.name not in ("__init__.py", "__main__.py"))


def own_tests(module: str) -> list[Path]:
    """Return where a module's test may be: at its mirrored place, or at that of its folder."""
    path = Path("tests/unit") / module.removeprefix("megabert/")
    return [path.with_name(f"test_{path.name}"), path.parent.with_name(f"test_{path.parent.name}.py")]


def has_own_test(module: str) -> bool:
    return any((ROOT / path).is_file() for path in own_tests(module))


def rows() -> list[tuple[list[str], list[str]]]:
    """Return the patterns of modules and the paths of tests of each row of the table."""
    table = (ROOT / "tests" / "README.md").read_text(encoding="utf-8").split("## Modules without")[1]
    return [
        (re.findall(r"`([^`]+)`", row["modules"]), re.findall(r"`([^`]+)`", row["tests"]))
        for row in ROW.finditer(table)
    ]


def test_every_module_has_a_test_file_or_a_row():
    patterns = [pattern for listed, _ in rows() for pattern in listed]
    missing = [module for module in modules() if not has_own_test(module)]
    assert not [module for module in missing if not any(fnmatch.fnmatch(module, pattern) for pattern in patterns)]


def test_every_row_names_modules_without_a_test_file_and_tests_that_exist():
    missing = [module for module in modules() if not has_own_test(module)]
    for patterns, tests in rows():
        assert not [pattern for pattern in patterns if not fnmatch.filter(missing, pattern)]
        assert not [path for path in tests if not (ROOT / "tests" / path).exists()]


def test_two_test_files_share_a_name_only_if_both_mirror_a_module():
    mirrors = {path for module in modules() for path in own_tests(module)}
    by_name = defaultdict(list)
    for path in (ROOT / "tests").rglob("test_*.py"):
        by_name[path.name].append(path.relative_to(ROOT))
    shared = [paths for paths in by_name.values() if len(paths) > 1]
    assert not [paths for paths in shared if not mirrors.issuperset(paths)]
