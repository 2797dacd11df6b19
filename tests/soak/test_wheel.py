"""Sdist and wheel of a user without a checkout: built, checked, installed alone, and used from text to a score."""

import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from megabert import __version__

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "examples" / "corpus" / "public_domain.jsonl"
STEPS = ["--phases.0.steps", "6", "--phases.1.steps", "2", "--checkpoint.every-steps", "4"]

pytestmark = pytest.mark.soak


def call(*words, cwd):
    done = subprocess.run(list(map(str, words)), cwd=cwd, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, f"{words}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """A folder with sdist and wheel; pip makes the environments that `build` and `twine` run in."""
    folder = tmp_path_factory.mktemp("release")
    checkout = folder / "checkout"
    call("git", "clone", "-q", ROOT, checkout, cwd=folder)
    call(sys.executable, "-m", "venv", folder / "tools", cwd=folder)
    call(folder / "tools/bin/pip", "install", "-q", "build", "twine", cwd=folder)
    call(folder / "tools/bin/python", "-m", "build", "-o", folder / "dist", checkout, cwd=folder)
    call(folder / "tools/bin/twine", "check", "--strict", *(folder / "dist").iterdir(), cwd=folder)
    shutil.rmtree(checkout)
    return folder / "dist"


def test_wheel_and_sdist_hold_the_packages_alone(dist):
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
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
    work = tmp_path / "work"
    work.mkdir()
    shutil.copy(CORPUS, work / "text.jsonl")
    shown = call(bin_ / "megabert", "--version", cwd=work)
    assert shown == f"{__version__}\n"
    place = call(bin_ / "python", "-c", "import megabert; print(megabert.__file__)", cwd=work)
    assert Path(place.strip()).is_relative_to(tmp_path / "venv")

    build = ["--for", "debug", "--input", "text.jsonl", "--format", "jsonl", "--vocab-size", "2048", "--output", "data"]
    call(bin_ / "megabert-data", "build", *build, "--validation-share", "0.06", cwd=work)
    call(
        bin_ / "megabert", "pretrain", "--recipe", "debug", "--data.path", "data", "--run-dir", "run", *STEPS, cwd=work
    )
    call(bin_ / "megabert", "export", "run", "--to", "model", cwd=work)
    load = "import transformers; transformers.BertForPreTraining.from_pretrained('model')"
    call(bin_ / "python", "-c", load, cwd=work)

    rows = [
        f"{text} number {n},{label}" for n in range(20) for text, label in (("the whale", "sea"), ("the law", "land"))
    ]
    (work / "labelled.csv").write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")
    task = ["classification", "--model", "model", "--data", "labelled.csv", "--output-dir", "scores", "--epochs", "1"]
    call(bin_ / "megabert", "finetune", *task, cwd=work)
    results = json.loads((work / "scores" / "results.json").read_text())
    assert results["mean"]
    assert all(0 <= scores["accuracy"] <= 1 for scores in results["mean"].values())
