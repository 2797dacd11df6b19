"""benchmarks/README.md has a row of each benchmark; scripts that left the tree are in the commit that pages name."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
PAGE = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([^`]+)` \|", PAGE, re.MULTILINE)


def test_every_benchmark_has_a_row():
    folders = {f"{path.name}/" for path in BENCHMARKS.glob("[!_]*") if any(path.glob("[!_]*.*"))}
    scripts = {
        str(path.relative_to(BENCHMARKS)) for path in (*BENCHMARKS.glob("*.[ps][yh]"), *BENCHMARKS.glob("cpu/*.py"))
    }
    assert (folders | scripts) - {"cpu/", "results/"} == {row for row in ROWS if not row.startswith("benchmarks/")}


def test_every_log_is_in_one_folder_and_on_a_page():
    assert not [path for path in BENCHMARKS.glob("**/*.log") if path.parts[-2] not in ("results", "soak")]
    pages = "".join(path.read_text(encoding="utf-8") for path in BENCHMARKS.glob("**/*.md"))
    of_scripts = {Path(row).with_suffix(".log").name for row in ROWS} | {f"{row[:-1]}.log" for row in ROWS}
    assert not [path for path in BENCHMARKS.glob("results/*") if path.name not in of_scripts and path.name not in pages]


def test_scripts_that_left_the_tree_are_in_the_commit_that_pages_name():
    paths = (*ROOT.glob("docs/**/*.md"), *BENCHMARKS.glob("**/README.md"))
    pages = "".join(path.read_text(encoding="utf-8") for path in paths)
    shown = set(re.findall(r"git show (\w{8}:benchmarks/[\w/]+\.py)", pages))
    assert shown == {f"ade63f94:{row}" for row in ROWS if row.startswith("benchmarks/")}
    if subprocess.run(["git", "cat-file", "-e", "ade63f94"], cwd=ROOT, capture_output=True).returncode:
        pytest.skip("this clone does not have the history of the project")
    for script in shown:
        subprocess.run(["git", "cat-file", "-e", script], cwd=ROOT, check=True)
