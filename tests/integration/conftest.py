"""Shards for real runs, built by the real pipeline from the bundled corpus: once, whatever the number of workers."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock
from forked.client import run_command
from integration.runs import Run

CORPUS = Path(__file__).parents[2] / "examples" / "corpus" / "public_domain.jsonl"


def small_corpus(folder: Path) -> Path:
    """Write thirty documents of the bundled corpus, shortened."""
    path = folder / "small.jsonl"
    documents = [json.loads(line) for line in CORPUS.read_text(encoding="utf-8").splitlines()]
    chosen = [{**document, "text": document["text"][:12_000]} for document in documents[::7]]
    path.write_text("".join(json.dumps(document) + "\n" for document in chosen), encoding="utf-8")
    return path


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


def build_shards(corpus: Path, output: Path, *extra: str) -> Path:
    """Run ``megabert-data build`` for lengths 64 and 128."""
    words = ["build", "--input", str(corpus), "--output", str(output), "--format", "jsonl"]
    words += [] if "--tokenizer" in extra else ["--vocab-size", "1000"]
    words += ["--lengths", "64", "128", "--workers", "1", "--validation-share", "0.2", *extra]
    output.parent.mkdir(parents=True, exist_ok=True)
    messages = output.with_suffix(".out")
    assert run_command("data_prep", words, messages) == 0, messages.read_text()
    return output


@pytest.fixture(scope="session")
def shards(corpus, made_once) -> Path:
    """A finished build, which nobody may change."""
    return made_once("data", lambda folder: build_shards(corpus, folder / "shards")) / "shards"


@pytest.fixture(scope="session")
def uninterrupted_run(shards, made_once) -> Run:
    """A complete run of two ranks that nothing interrupted: what a killed or stopped run has to equal in the end."""

    def run_in(folder: Path) -> Run:
        return Run(folder / "uninterrupted", shards, ranks=2)

    return run_in(made_once("runs", lambda folder: run_in(folder).finish_well()))
