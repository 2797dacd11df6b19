"""Near duplicates at full counts: recall against theory and another library, rounds of long clusters, the same bytes.

The library is datasketch, if it is installed.
"""

import contextlib
import json
import random
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from soak.test_data_kills import CORPUS, ROOT
from unit.data_prep.builds import hashes
from unit.data_prep.clean.test_components import find_planted, names
from unit.data_prep.clean.test_near_duplicates import SIGNATURE, similar_pair
from unit.data_prep.conftest import begun_build, write_jsonl

from data_prep.clean import near_copies
from data_prep.clean.grouped_hashes import HashPlan
from data_prep.clean.near_copies import KEYS, find_near_copies
from data_prep.clean.near_duplicates import write_keys
from data_prep.config.build import BuildConfig, SourceConfig
from data_prep.documents.document_set import hash_text

PAIRS, LONG, KILLS, DOCUMENTS = 2_000, 100_000, 10, 60
MPIRUN = Path(sys.executable).parent / "mpirun"
FLAGS = "--vocab-size 300 --lengths 64 --dupe-factor 1 --clean near_duplicates duplicate_documents --chunk-mib 0.1"
SMALL_RANGES = """
from data_prep.clean import near_copies, paragraphs
from data_prep.cli import main
paragraphs.HASHES_PER_RANGE, near_copies.HASHES_PER_RANGE = 128, 4
raise SystemExit(main())
"""
"""A build whose keys and documents are divided into several ranges, as those of a large corpus are."""

pytestmark = pytest.mark.soak


def print_table(headers, rows):
    print("\n| " + " | ".join(headers) + " |\n" + "|---" * len(headers) + "|")
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")


def library_pairs(texts):
    """Return the pairs of documents that datasketch's bands have in common."""
    from datasketch import MinHash, MinHashLSH

    bands, pairs = MinHashLSH(num_perm=112, params=(14, 8)), set()
    for number, text in enumerate(texts):
        words = text.split()
        signature = MinHash(num_perm=112, seed=1)
        signature.update_batch([" ".join(words[i : i + 5]).encode() for i in range(len(words) - 4)])
        pairs |= {(other, number) for other in bands.query(signature)}
        bands.insert(number, signature)
    return pairs


def own_pairs(texts):
    by_key = {}
    for number, text in enumerate(texts):
        for key in SIGNATURE.keys(text).tolist():
            by_key.setdefault(key, []).append(number)
    return {(a, b) for numbers in by_key.values() for a in numbers for b in numbers if a < b}


def test_recall_is_that_of_the_theory_and_precision_is_one():
    rows, chance = [], random.Random(7)
    for similarity in (0.70, 0.75, 0.80, 0.85, 0.90, 0.95):
        pairs = [similar_pair(chance, similarity) for _ in range(PAIRS)]
        texts, exact = [text for one, other, _ in pairs for text in (one, other)], pairs[0][2]
        wanted = {(2 * number, 2 * number + 1) for number in range(PAIRS)}
        found, theory = own_pairs(texts), 1 - (1 - exact**8) ** 14
        recall = len(found & wanted) / PAIRS
        others = library_pairs(texts) if find_spec("datasketch") else set()
        other = f"{len(others & wanted) / PAIRS:.4f}" if others else "-"
        rows.append((f"{exact:.4f}", PAIRS, f"{theory:.4f}", f"{recall:.4f}", other, len(found - wanted)))
        assert abs(recall - theory) < 4 * (theory * (1 - theory) / PAIRS) ** 0.5 + 1e-3
        assert found <= wanted
    print_table(("similarity", "pairs", "theory", "found", "datasketch", "found that were not planted"), rows)


def test_rounds_grow_with_the_logarithm_of_a_cluster(tmp_path, monkeypatch):
    config, rows = BuildConfig(sources=(SourceConfig(input="none"),)), []
    nodes = names(LONG)
    low, high = min(nodes), max(nodes)
    shapes = {
        "chain, any order of hashes": list(pairwise(nodes)),
        "chain, ascending hashes": list(pairwise(sorted(nodes))),
        "star around the smallest": [(low, node) for node in nodes if node != low],
        "star around the largest": [(high, node) for node in nodes if node != high],
        "star around any": [(nodes[0], node) for node in nodes[1:]],
    }
    for number, (name, edges) in enumerate(shapes.items()):
        _, counts = find_planted(tmp_path / str(number), config, edges, 4, monkeypatch, 1 << 16)
        rows.append((name, f"{LONG:,}", counts["clusters"], counts["rounds"], f"{2 * np.log2(LONG):.1f}"))
        assert (counts["clusters"], counts["documents"]) == (1, LONG)
        assert counts["rounds"] <= 2 * np.log2(LONG)
    print_table(("cluster", "documents", "clusters found", "rounds", "2 log2 n"), rows)


def test_chain_of_real_documents_is_one_cluster(tmp_path, monkeypatch):
    """Each document has a word at its end that the one before lacks, and lacks the first of that one."""
    monkeypatch.setattr(near_copies, "HASHES_PER_RANGE", 1 << 16)
    words = [f"{hash_text(str(number)):x}" for number in range(LONG + 100)]
    near, chunks = tmp_path / "work" / "near", 8
    (tmp_path / "work" / "records").mkdir(parents=True)
    near.mkdir()
    (tmp_path / "build.json").touch()
    keys = 0
    for chunk in range(chunks):
        documents = ([" ".join(words[number : number + 100])] for number in range(chunk, LONG, chunks))
        keys += write_keys(documents, SIGNATURE, near / KEYS.format(chunk))[1]["keys"]
    build = begun_build(tmp_path, BuildConfig(sources=(SourceConfig(input="none"),)))
    _, counts = find_near_copies(build, HashPlan.of(chunks, keys))
    print_table(("documents", "clusters", "rounds"), [(f"{LONG:,}", counts["clusters"], counts["rounds"])])
    assert (counts["clusters"], counts["documents"]) == (1, LONG)
    assert counts["rounds"] <= 2 * np.log2(LONG)


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """Some of the bundled corpus, and each third document again with a further sentence; in five files."""
    folder, chance = tmp_path_factory.mktemp("copied"), random.Random(2)
    texts = [json.loads(line)["text"] for line in CORPUS.read_text(encoding="utf-8").splitlines()[:DOCUMENTS]]
    texts += [f"{text}\nThis one is a copy, number {number}." for number, text in enumerate(texts[::3])]
    chance.shuffle(texts)
    for number in range(5):
        write_jsonl(folder / f"{number}.jsonl", texts[number::5])
    return folder


def command(copied, output, *more, start=("-c", SMALL_RANGES)):
    words = [sys.executable, *start, "build", "--input", f"{copied}/*.jsonl", "--output", str(output)]
    return [*words, *FLAGS.split(), *map(str, more)]


def run(words):
    done = subprocess.run([*map(str, words)], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def reference(copied, tmp_path_factory):
    """Hashes of a build by one process with one range of documents, and its seconds."""
    output = tmp_path_factory.mktemp("reference") / "out"
    begin = time.monotonic()
    report = run(command(copied, output, "--workers", 1, start=("-m", "data_prep")))
    print("\n" + next(line for line in report.splitlines() if "clusters" in line))
    return hashes(output), time.monotonic() - begin


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_workers_do_not_change_a_byte(copied, reference, tmp_path, workers):
    run(command(copied, tmp_path / "out", "--workers", workers))
    assert hashes(tmp_path / "out") == reference[0]


@pytest.mark.skipif(not MPIRUN.is_file(), reason="no mpirun beside Python: pip install 'megabert[mpi]'")
@pytest.mark.parametrize("ranks", [1, 2, 4, 16])
def test_ranks_do_not_change_a_byte(copied, reference, tmp_path, ranks):
    run([MPIRUN, "-n", ranks, *command(copied, tmp_path / "out", "--mpi")])
    assert hashes(tmp_path / "out") == reference[0]


def test_kills_do_not_change_a_byte(copied, reference, tmp_path):
    """Killed with all of its workers at random moments, and continued each time."""
    chance, killed = random.Random(3), 0
    for _ in range(KILLS):
        process = subprocess.Popen(
            command(copied, tmp_path / "out", "--workers", 2), cwd=ROOT, stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0.3, 1.0) * reference[1])
        killed += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
    print(f"\n{killed} of {KILLS} builds were killed before their end")
    assert killed
    run(command(copied, tmp_path / "out", "--workers", 2))
    assert hashes(tmp_path / "out") == reference[0]
