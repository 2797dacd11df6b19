"""Files for those who find the project elsewhere, the workflows, and the page of benchmarks."""

import re
import subprocess
from configparser import ConfigParser
from itertools import takewhile
from pathlib import Path

import pytest
import yaml

from megabert import __version__

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_citation_names_this_version_and_the_licence_of_the_package():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__
    assert f"This is version {__version__}," in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"This is {__version__}," in (ROOT / "docs/requirements.md").read_text(encoding="utf-8")
    assert f"license = {citation['license']}\n" in (ROOT / "setup.cfg").read_text()
    assert {"cff-version", "message", "title", "authors"} <= set(citation)


def test_packages_say_that_they_are_typed():
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    for package in ("megabert", "data_prep"):
        assert (ROOT / package / "py.typed").is_file()
        assert config["options.package_data"][package] == "py.typed"


def test_changelog_begins_with_this_version_and_names_no_subject_twice():
    headings = re.findall(r"^(#+ .*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[:2] == ["# Changelog", f"## {__version__}"]
    own = list(takewhile(lambda heading: heading.startswith("### "), headings[2:]))
    assert len(set(own)) == len(own) > 5


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_runs_scripts_and_workflows_that_exist(path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        if "uses" in job:
            assert (ROOT / job["uses"]).is_file()
            continue
        assert job["runs-on"], name
        scripts = [step["run"].split()[1] for step in job["steps"] if step.get("run", "").startswith("bash ")]
        assert all((ROOT / script).is_file() for script in scripts)


def test_no_line_of_the_changelog_comes_twice():
    """Two branches that add lines at one place are merged by keeping both, moved lines included."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    lines = [line[:40] for line in text.splitlines() if line.startswith("- ")]
    assert sorted(lines) == sorted(set(lines))


def test_ci_and_the_classifiers_name_the_same_pythons():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    classified = re.findall(r"^ +Programming Language :: Python :: (.*)$", (ROOT / "setup.cfg").read_text(), re.M)
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == classified


@pytest.mark.parametrize("name", ["ci", "release"])
def test_nothing_is_released_that_ci_has_not_run(name):
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())["jobs"]
    assert any(step.get("run") == "bash .ci/run" for step in jobs["test"]["steps"])
    if name == "release":
        assert jobs["packages"]["needs"] == "test"
        assert jobs["publish"]["needs"] == "packages"


BENCHMARKS = ROOT / "benchmarks"
BENCHMARK_PAGE = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([^`]+)` \|", BENCHMARK_PAGE, re.MULTILINE)


def test_every_benchmark_has_a_row():
    folders = {f"{path.name}/" for path in BENCHMARKS.glob("[!_]*") if any(path.glob("[!_]*.*"))}
    scripts = {
        str(path.relative_to(BENCHMARKS)) for path in (*BENCHMARKS.glob("*.[ps][yh]"), *BENCHMARKS.glob("cpu/*.py"))
    }
    assert (folders | scripts) - {"cpu/", "results/"} == {row for row in ROWS if "benchmarks/" not in row}


def test_every_log_is_in_one_folder_and_on_a_page():
    assert not [path for path in BENCHMARKS.glob("**/*.log") if path.parts[-2] not in ("results", "soak")]
    pages = "".join(path.read_text(encoding="utf-8") for path in BENCHMARKS.glob("**/*.md"))
    written = {Path(row).with_suffix(".log").name for row in ROWS} | {f"{row[:-1]}.log" for row in ROWS}
    assert not [path for path in BENCHMARKS.glob("results/*") if path.name not in written and path.name not in pages]


def test_scripts_that_left_the_tree_are_in_the_commit_that_pages_name():
    paths = (*ROOT.glob("docs/**/*.md"), *BENCHMARKS.glob("**/README.md"))
    pages = "".join(path.read_text(encoding="utf-8") for path in paths)
    shown = set(re.findall(r"\b(\w{8}:benchmarks/[\w/]+\.py)", pages))
    assert shown == {row if ":" in row else f"ade63f94:{row}" for row in ROWS if "benchmarks/" in row}
    if subprocess.run(["git", "cat-file", "-e", "ade63f94"], cwd=ROOT, capture_output=True).returncode:
        pytest.skip("this clone does not have the history of the project")
    for script in shown:
        subprocess.run(["git", "cat-file", "-e", script], cwd=ROOT, check=True)
