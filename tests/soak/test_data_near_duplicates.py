"""Near duplicates at full counts: recall against theory, rounds of long clusters."""

import random
from itertools import pairwise

import numpy as np
import pytest
from unit.data_prep.clean.test_near_duplicates import SIGNATURE, find_planted, hashes_of, similar_pair
from unit.data_prep.conftest import begun_build

from data_prep.clean import near_duplicates
from data_prep.clean.grouped_hashes import HashPlan
from data_prep.clean.near_duplicates import KEYS, find_near_copies, write_keys
from data_prep.config.build import BuildConfig, SourceConfig
from data_prep.documents.document_set import hash_text

PAIRS, LONG = 2_000, 100_000

pytestmark = pytest.mark.soak


def print_table(headers, rows):
    print("\n| " + " | ".join(headers) + " |\n" + "|---" * len(headers) + "|")
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")


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
        rows.append((f"{exact:.4f}", PAIRS, f"{theory:.4f}", f"{recall:.4f}", len(found - wanted)))
        assert abs(recall - theory) < 4 * (theory * (1 - theory) / PAIRS) ** 0.5 + 1e-3
        assert found <= wanted
    print_table(("similarity", "pairs", "theory", "found", "found that were not planted"), rows)


def test_rounds_grow_with_the_logarithm_of_a_cluster(tmp_path, monkeypatch):
    config, rows = BuildConfig(sources=(SourceConfig(input="none"),)), []
    nodes = hashes_of(LONG)
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
    monkeypatch.setattr(near_duplicates, "HASHES_PER_RANGE", 1 << 16)
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
    counts = find_near_copies(build, HashPlan.of(chunks, keys))
    print_table(("documents", "clusters", "rounds"), [(f"{LONG:,}", counts["clusters"], counts["rounds"])])
    assert (counts["clusters"], counts["documents"]) == (1, LONG)
    assert counts["rounds"] <= 2 * np.log2(LONG)
