"""Builds of the demo, of near copies and of quotations, killed at random: the same bytes.

Other numbers of workers and ranks, and other orders and files of the input, are in `unit/data_prep/`.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from support.processes import has_ended, wait_for
from unit.data_prep.builds import hashes, hashes_of_data
from unit.data_prep.conftest import write_jsonl

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "examples" / "corpus" / "public_domain.jsonl"
KILLS = 20

pytestmark = pytest.mark.soak


NEAR = "--vocab-size 300 --lengths 64 --dupe-factor 1 --clean near_duplicates duplicate_documents --chunk-mib 0.1"
PARAGRAPHS = "--vocab-size 4000 --lengths 128 --dupe-factor 1 --chunk-mib 0.1 --clean.min-characters 300 --clean "
PARAGRAPHS += "mojibake control_characters length duplicate_paragraphs duplicate_documents"
SMALL_RANGES = """
from data_prep.clean import grouped_hashes, near_duplicates
from data_prep.cli import main
grouped_hashes.HASHES_PER_RANGE, near_duplicates.HASHES_PER_RANGE = 128, 4
raise SystemExit(main())
"""
"""A build whose keys and documents are divided into several ranges, as those of a large corpus are."""


@pytest.fixture(scope="module", params=["demo", "near copies", "paragraphs"])
def build(request, tmp_path_factory) -> list[str]:
    """Words of a build: of the demo's texts; of sixty, and each third again with a further sentence; of quotations."""
    if request.param == "demo":
        flags = ["--vocab-size", "8192", "--validation-share", "0.05"]
        return ["-m", "data_prep", "build", "--input", str(CORPUS), *flags]
    folder, chance = tmp_path_factory.mktemp("copied"), random.Random(2)
    texts = [json.loads(line)["text"] for line in CORPUS.read_text(encoding="utf-8").splitlines()]
    words = ["-m", "data_prep", *PARAGRAPHS.split()]
    if request.param == "paragraphs":
        paragraphs = [line for text in texts for line in text.splitlines() if len(line) >= 100]
        texts += ["\n".join(chance.sample(paragraphs, chance.randint(1, 6))) for _ in range(3 * len(texts))]
        texts += texts[::8]
    else:
        words = ["-c", SMALL_RANGES, *NEAR.split()]
        copies = [f"{text}\nThis one is a copy, number {number}." for number, text in enumerate(texts[:60:3])]
        texts = texts[:60] + copies
    chance.shuffle(texts)
    for number in range(5):
        write_jsonl(folder / f"{number}.jsonl", texts[number::5])
    return [*words[:2], "build", "--input", f"{folder}/*.jsonl", *words[2:]]


def command(build, output, *more):
    return [sys.executable, *build, "--output", str(output), *map(str, more)]


def run(words):
    done = subprocess.run([*map(str, words)], cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def reference(build, tmp_path_factory):
    """Hashes of a build by one process, and its seconds; one range of documents gives the same but for its own hash."""
    folder = tmp_path_factory.mktemp("reference")
    start = time.monotonic()
    run(command(build, folder / "out", "--workers", 1))
    seconds = time.monotonic() - start
    run(command(["-m", "data_prep", *build[2:]], folder / "one", "--workers", 1))
    assert data_of(folder / "out") == data_of(folder / "one")
    return hashes(folder / "out"), seconds


def data_of(folder):
    """Return hashes of the shards, and the manifests without the hash of the files of ranges."""
    manifests = [json.loads(path.read_bytes()) for path in sorted(folder.glob("instances/*/manifest.json"))]
    for manifest in manifests:
        del manifest["statistics"]["corpus"]["documents_sha256"]
    return hashes_of_data(folder), manifests


def children_of(process):
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True)
    return [int(pid) for pid in listed.stdout.split()]


def test_kills_at_random_moments_do_not_change_a_byte(build, reference, tmp_path):
    """A random process of the build (parent or worker) is killed each time; survivors must end by themselves."""
    rng = random.Random(1)
    expected, seconds = reference
    for kill in range(KILLS):
        folder = tmp_path / f"out-{kill % 4}"  # each folder is killed five times on its way
        process = subprocess.Popen(
            command(build, folder, "--workers", 2), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(rng.uniform(0, seconds))
        family = children_of(process)
        victim = rng.choice([process.pid, *family]) if family else process.pid
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        process.wait(timeout=120)
        for pid in family:  # no worker outlives its parent
            wait_for(partial(has_ended, pid), 20)
    for number in range(4):
        run(command(build, tmp_path / f"out-{number}", "--workers", 2))
        assert hashes(tmp_path / f"out-{number}") == expected
        assert not list((tmp_path / f"out-{number}").rglob("*.tmp"))
