"""Shards for real runs, built by the real pipeline from the bundled corpus: once, whatever the number of workers."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from support.bundled_corpus import build_shards, small_corpus
from support.runs import Run, finished


@pytest.fixture(scope="session")
def made_once(tmp_path_factory) -> Callable[[str, Callable[[Path], object]], Path]:
    """``made_once(name, make)`` is a folder that the first worker makes, by ``make(folder)``; the others wait."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def folder_of(name: str, make: Callable[[Path], object]) -> Path:
        folder, done = shared / name, shared / f"{name}.done"
        with FileLock(shared / f"{name}.lock"):
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                make(folder)
                done.touch()
        return folder

    return folder_of


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """Thirty documents of the bundled corpus."""
    return small_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def shards(corpus, made_once) -> Path:
    """A finished build, which nobody may change."""
    return made_once("data", lambda folder: build_shards(corpus, folder / "shards")) / "shards"


@pytest.fixture(scope="session")
def run_once(made_once) -> Callable[..., Run]:
    """``run_once(name, data, ...)`` is a complete run that the first worker makes, and that nobody may change."""

    def run_of(name: str, data: Path, **options: Any) -> Run:
        folder = made_once(name, lambda folder: finished(folder / name, data, **options))
        return Run(folder / name, data, **options)

    return run_of


@pytest.fixture(scope="session")
def uninterrupted_run(shards, run_once) -> Run:
    """A complete run of two ranks that nothing interrupted: what a killed or stopped run has to equal in the end."""
    return run_once("uninterrupted", shards, ranks=2)
