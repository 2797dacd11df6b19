"""Shards for real runs, built once by the real pipeline from the bundled corpus."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
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
def corpus(tmp_path_factory) -> Path:
    """Thirty documents of the bundled corpus."""
    return small_corpus(tmp_path_factory.mktemp("corpus"))


def build_shards(corpus: Path, output: Path, *extra: str) -> Path:
    """Run ``megabert-data build`` for lengths 64 and 128."""
    command = [sys.executable, "-m", "data_prep", "build", "--input", str(corpus), "--format", "jsonl"]
    command += ["--output", str(output), "--vocab-size", "1000", "--lengths", "64", "128", "--workers", "1"]
    command += ["--validation-share", "0.2"]
    done = subprocess.run([*command, *extra], capture_output=True, text=True, timeout=200, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr
    return output


@pytest.fixture(scope="session")
def shards(corpus, tmp_path_factory) -> Path:
    """A finished build."""
    return build_shards(corpus, tmp_path_factory.mktemp("data") / "shards")


@pytest.fixture(scope="session")
def uninterrupted_run(shards, tmp_path_factory) -> Run:
    """A complete run of two ranks that nothing interrupted: what a killed or stopped run has to equal in the end."""
    run = Run(tmp_path_factory.mktemp("runs") / "uninterrupted", shards, ranks=2)
    run.finish_well()
    return run
