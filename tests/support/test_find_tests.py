"""``make test FILE=`` runs the tests of a module."""

import subprocess
import sys

import pytest
from support.find_tests import ROOT, find_tests

INTERPRETED = "tests/unit/ops/test_interpreted_kernels.py::test_kernels_match_their_references_in_the_interpreter"


@pytest.mark.parametrize(
    ("module", "tests"),
    [
        ("megabert/training/state.py", ["tests/unit/training/test_state.py"]),
        ("megabert/ops/bias_gelu/triton.py", ["tests/unit/ops/test_bias_gelu.py"]),
        ("megabert/ops/proof/tuning.py", ["tests/unit/ops/test_tuned_tiles.py", f"{INTERPRETED}[tuning]"]),
    ],
)
def test_tests_lie_at_the_mirrored_place_or_are_named_by_the_table(module, tests):
    assert find_tests(module) == tests


@pytest.mark.parametrize("name", ["megabert/optim/lambda.py", "README.md", "/etc/passwd"])
def test_a_file_that_is_no_module_is_refused(name):
    command = [sys.executable, "tests/support/find_tests.py", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{name}: no module" in done.stderr


def test_make_runs_them_alone():
    words = ["make", "--dry-run", "--assume-old=.venv/.installed", "test", "FILE=megabert/training/state.py"]
    printed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "tests/support/find_tests.py megabert/training/state.py" in printed
    assert "pytest $tests" in printed
