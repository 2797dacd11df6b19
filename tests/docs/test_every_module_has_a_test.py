"""Every module of the product has a test file of its name, or a row in tests/README.md that says what tests it."""

import fnmatch
from collections import defaultdict

from support.find_tests import ROOT, modules, own_tests, rows


def has_own_test(module: str) -> bool:
    return any((ROOT / path).is_file() for path in own_tests(module))


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
