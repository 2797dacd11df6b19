"""The whole demo build killed at random moments, and by any number of workers: always the same bytes."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from unit.data_prep.builds import hashes

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "examples" / "corpus" / "public_domain.jsonl"
KILLS = 20

pytestmark = pytest.mark.soak


def command(output, processes, text=CORPUS):
    flags = ["--vocab-size", "8192", "--validation-share", "0.05", *processes]
    return [sys.executable, "-m", "data_prep", "build", "--input", str(text), "--output", str(output), *flags]


def workers_flag(workers):
    return ["--workers", str(workers)]


def run(output, workers, text=CORPUS):
    done = subprocess.run(
        command(output, workers_flag(workers), text), cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference") / "out"
    start = time.monotonic()
    run(folder, 1)
    return hashes(folder), time.monotonic() - start


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_workers_do_not_change_a_byte(reference, tmp_path, workers):
    run(tmp_path / "out", workers)
    assert hashes(tmp_path / "out") == reference[0]


@pytest.mark.parametrize("files", [1, 3, 40])
def test_order_and_split_of_the_input_do_not_change_a_byte(reference, tmp_path, files):
    lines = CORPUS.read_text(encoding="utf-8").splitlines(keepends=True)
    random.Random(files).shuffle(lines)
    for number in range(files):
        (tmp_path / f"{number}.jsonl").write_text("".join(lines[number::files]), encoding="utf-8")
    run(tmp_path / "out", 2, tmp_path / "*.jsonl")
    # Manifests name the input.
    shards, expected = (
        {name: digest for name, digest in all_.items() if not name.endswith("manifest.json")}
        for all_ in (hashes(tmp_path / "out"), reference[0])
    )
    assert shards == expected


@pytest.mark.parametrize("ranks", [1, 2, 4, 16])
def test_ranks_do_not_change_a_byte(reference, tmp_path, ranks):
    mpirun = Path(sys.executable).parent / "mpirun"
    if not mpirun.is_file():
        pytest.skip("no mpirun beside Python: pip install 'megabert[mpi]'")
    words = [str(mpirun), "-n", str(ranks), *command(tmp_path / "out", ["--mpi"])]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert hashes(tmp_path / "out") == reference[0]


def children_of(process):
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True)
    return [int(pid) for pid in listed.stdout.split()]


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_kills_at_random_moments_do_not_change_a_byte(reference, tmp_path):
    """A random process of the build (parent or worker) is killed each time; survivors must end by themselves."""
    rng = random.Random(1)
    expected, seconds = reference
    for kill in range(KILLS):
        folder = tmp_path / f"out-{kill % 4}"  # each folder is killed five times on its way
        process = subprocess.Popen(
            command(folder, workers_flag(2)), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(rng.uniform(0, seconds))
        family = children_of(process)
        victim = rng.choice([process.pid, *family]) if family else process.pid
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        process.wait(timeout=120)
        deadline = time.monotonic() + 20
        while any(is_alive(pid) for pid in family) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(is_alive(pid) for pid in family), "a worker outlived its parent"
    for number in range(4):
        run(tmp_path / f"out-{number}", 2)
        assert hashes(tmp_path / f"out-{number}") == expected
        assert not list((tmp_path / f"out-{number}").rglob("*.tmp"))
