"""The list of what tests clear from the environment, held against the sources."""

import ast
import re
from pathlib import Path

from support.environment import CLEARED, KEPT, clear, is_cleared

ROOT = Path(__file__).parents[2]
FOLDERS = ("slurm", "examples", "requirements")
NAME = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]*)*")
NO_VARIABLES = {"EADDRINUSE", "FILE", "SC_PAGE_SIZE", "SC_PHYS_PAGES", "WHICH"}
"""Other names of this form in those modules: an error, arguments in help texts, and what os.sysconf knows."""


def read_by_scripts() -> set[str]:
    """Return variables that a script uses and does not merely set for itself."""
    texts = [path.read_text() for folder in FOLDERS for path in (ROOT / folder).glob("*.sh")]
    return {name for text in texts for name in re.findall(rf"\$\{{({NAME.pattern}):?-", text)}


def read_by_programs() -> set[str]:
    """Return texts that look like variables in modules that use ``os.environ``."""
    modules = [path for room in ("megabert", "data_prep") for path in (ROOT / room).rglob("*.py")]
    trees = [ast.parse(text) for path in modules if "os.environ" in (text := path.read_text())]
    constants = [node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return {value for value in constants if isinstance(value, str) and NAME.fullmatch(value)} - NO_VARIABLES


def test_every_variable_that_is_read_is_cleared_or_kept_for_a_reason():
    assert {name for name in read_by_scripts() | read_by_programs() if not is_cleared(name)} <= set(KEPT)


def test_every_cleared_variable_is_read_somewhere():
    assert CLEARED - read_by_scripts() - read_by_programs() == set()


def test_settings_of_the_caller_are_gone():
    environment = {"VENV": "elsewhere", "SLURM_JOB_ID": "17", "MAKEFLAGS": "-- VENV=elsewhere", "PATH": "/bin"}
    clear(environment)
    assert environment == {"PATH": "/bin"}
