"""Sdist and wheel of a user without a checkout: built, checked, installed alone, and used from text to a score."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from support.installed_wheel import build_dist, call, from_text_to_a_score

from megabert import __version__

USER = Path(__file__).parents[1] / "assets" / "user_of_the_library.py"
STEPS = ["--phases.0.steps", "6", "--phases.1.steps", "2", "--checkpoint.every-steps", "4"]

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    return build_dist(tmp_path_factory.mktemp("release"))


def test_wheel_and_sdist_hold_the_packages_alone(dist):
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
        assert {"megabert/py.typed", "data_prep/py.typed"} <= {*archive.namelist()}
    assert tops == {"megabert", "data_prep", "ds_configs", f"megabert-{__version__}.dist-info"}
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    assert {"megabert", "data_prep", "ds_configs", "LICENSE", "README.md", "setup.cfg", "pyproject.toml"} <= names
    assert not names & {"tests", "benchmarks", "models", "runs", "examples"}


@pytest.fixture(scope="module")
def bin_(dist, tmp_path_factory):
    """Return the programs of an environment that the wheel is installed in."""
    (wheel,) = dist.glob("*.whl")
    folder = tmp_path_factory.mktemp("installed")
    call(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    # The torch of this virtualenv, so that a machine without a GPU does not fetch one with CUDA.
    pins = Path(sys.prefix) / "constraints.txt"
    call(folder / "venv/bin/pip", "install", "-q", "-c", pins, wheel, "transformers", cwd=folder)
    return folder / "venv" / "bin"


def test_installed_wheel_goes_from_text_to_a_score_without_the_checkout(bin_, tmp_path):
    assert call(bin_ / "megabert", "--version", cwd=tmp_path) == f"{__version__}\n"
    place = call(bin_ / "python", "-c", "import megabert; print(megabert.__file__)", cwd=tmp_path)
    assert Path(place.strip()).is_relative_to(bin_.parent)
    print(from_text_to_a_score(bin_, tmp_path / "work", steps=STEPS))


def strict_errors(bin_, file: Path) -> list[str]:
    """Return the errors of ``mypy --strict`` in a user's file, with the packages of the environment."""
    words = [sys.executable, "-m", "mypy", "--strict", "--no-color-output", "--python-executable", bin_ / "python"]
    done = subprocess.run(list(map(str, [*words, file.name])), cwd=file.parent, capture_output=True, text=True)
    assert done.returncode < 2, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if ": error: " in line]


def test_a_users_file_passes_mypy_strict_with_the_installed_wheel(bin_, tmp_path):
    shutil.copy(USER, tmp_path)
    assert strict_errors(bin_, tmp_path / USER.name) == []
    wrong = USER.read_text().replace("top_k=3", 'top_k="3"').replace("-> list[Judgement]", "-> list[str]")
    (tmp_path / "wrong.py").write_text(wrong)
    codes = [line.rpartition(" ")[2] for line in strict_errors(bin_, tmp_path / "wrong.py")]
    assert codes == ["[arg-type]", "[return-value]"]
