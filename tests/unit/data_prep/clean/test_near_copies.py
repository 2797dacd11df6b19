"""Clusters from planted edges: the same as by union-find, in few rounds, however they are parted."""

import math
import random
from itertools import pairwise

import numpy as np
import pytest
from support.soak import in_soak
from unit.data_prep.conftest import begun_build

from data_prep.clean import near_duplicates
from data_prep.clean.grouped_hashes import HashPlan, distinct, write_rows
from data_prep.clean.near_duplicates import KEYS, DocumentFates, find_near_copies, sibling_path
from data_prep.documents.document_set import hash_text


def clusters_of(edges):
    """Return the smallest of its cluster for each number, by union-find."""
    parents = {}

    def root(node):
        while parents.setdefault(node, node) != node:
            parents[node] = node = parents[parents[node]]
        return node

    for a, b in edges:
        low, high = sorted((root(a), root(b)))
        parents[high] = low
    return {node: root(node) for node in parents}


def find_planted(folder, config, edges, chunks, monkeypatch, rows=1 << 21):
    """Plant edges in files of chunks without keys; return the fate of each document and the counts."""
    monkeypatch.setattr(near_duplicates, "HASHES_PER_RANGE", rows)
    near = folder / "work" / "near"
    (folder / "work" / "records").mkdir(parents=True)
    near.mkdir()
    (folder / "build.json").touch()
    pairs = np.sort(np.array(edges, np.uint64).T, axis=0)[::-1]
    for chunk in range(chunks):
        own = distinct(pairs[:, chunk::chunks])
        keys = np.tile(np.unique(own), (2, 1))  # each document has a key that no other one has
        write_rows(near / KEYS.format(chunk), keys)
        write_rows(sibling_path(near / KEYS.format(chunk), "edges"), own)
    build = begun_build(folder, config)
    gathered, counts = find_near_copies(build, HashPlan.of(chunks, 2 * len(edges)))
    fates = {}
    for chunk in range(chunks):
        fates |= DocumentFates(gathered(chunk), chunk)._fates
    return fates, counts


def names(count):
    return [hash_text(f"document {number}") for number in range(count)]


def shapes():
    chance, nodes = random.Random(5), names(600)
    middle = nodes[0]
    return {
        "chain": list(pairwise(nodes)),
        "sorted chain": list(pairwise(sorted(nodes))),
        "star": [(middle, node) for node in nodes[1:]],
        "star of the largest": [(max(nodes), node) for node in nodes if node != max(nodes)],
        "random": [tuple(chance.sample(nodes, 2)) for _ in range(400)],
        "one pair": [(nodes[0], nodes[1])],
    }


@pytest.mark.parametrize("shape", shapes())
@pytest.mark.parametrize(("chunks", "rows"), [(3, 40), *in_soak((1, 1 << 21))])
def test_planted_clusters_are_union_finds_in_few_rounds(make_config, tmp_path, monkeypatch, shape, chunks, rows):
    edges = shapes()[shape]
    fates, counts = find_planted(tmp_path, make_config(), edges, chunks, monkeypatch, rows)
    expected = clusters_of(edges)
    sizes = {root: sum(own == root for own in expected.values()) for root in expected.values()}
    assert fates == {node: sizes.get(node, 0) for node in expected}
    assert (counts["clusters"], counts["documents"]) == (len(sizes), len(expected))
    assert sum(counts["sizes"].values()) == len(sizes)
    assert counts["rounds"] <= 2 * math.log2(len(expected)) or len(expected) == 2


def test_no_edges_give_no_cluster(make_config, tmp_path, monkeypatch):
    fates, counts = find_planted(tmp_path, make_config(), np.zeros((0, 2)), 2, monkeypatch)
    assert not fates
    assert (counts["clusters"], counts["rounds"], counts["huge"]) == (0, 1, {})
