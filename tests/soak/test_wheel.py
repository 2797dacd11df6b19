"""Sdist and wheel of a user without a checkout: built, checked, installed alone, and used from text to a score."""

import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from support.installed_wheel import build_dist, call, from_text_to_a_score

from megabert import __version__

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


def test_installed_wheel_goes_from_text_to_a_score_without_the_checkout(dist, tmp_path):
    (wheel,) = dist.glob("*.whl")
    call(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    bin_ = tmp_path / "venv" / "bin"
    # The torch of this virtualenv, so that a machine without a GPU does not fetch one with CUDA.
    pins = Path(sys.prefix) / "constraints.txt"
    call(bin_ / "pip", "install", "-q", "-c", pins, wheel, "transformers", cwd=tmp_path)
    assert call(bin_ / "megabert", "--version", cwd=tmp_path) == f"{__version__}\n"
    place = call(bin_ / "python", "-c", "import megabert; print(megabert.__file__)", cwd=tmp_path)
    assert Path(place.strip()).is_relative_to(tmp_path / "venv")
    print(wheel.name, from_text_to_a_score(bin_, tmp_path / "work", steps=STEPS))
