"""Near duplicates: similar texts are found as often as the theory says, clusters are those of union-find."""

import itertools
import math
import random
from itertools import pairwise

import numpy as np
import pytest
from support.soak import in_soak
from unit.data_prep.builds import hashes_of_data
from unit.data_prep.conftest import begun_build, write_jsonl

from data_prep.checks import stats
from data_prep.checks.stats import describe_corpus, example_lines
from data_prep.clean import cleaner, grouped_hashes, near_duplicates
from data_prep.clean.grouped_hashes import HashPlan, distinct, write_rows
from data_prep.clean.near_duplicates import FATES, KEYS, DocumentFates, Signature, find_near_copies, sibling_path
from data_prep.config.build import SourceConfig
from data_prep.config.cleaning import CleanConfig
from data_prep.documents.document_set import hash_text
from data_prep.execution.executors import Executor
from data_prep.pipeline import build_shards

SIGNATURE = Signature(words=5, bands=14, rows=8)
SHINGLES = 300


def similar_pair(chance, similarity, shingles=SHINGLES):
    """Return two texts whose sets of 5-grams have this Jaccard similarity, about, and the exact one."""
    words = [f"w{chance.getrandbits(48):x}" for _ in range(shingles + 4)]
    changed = round(shingles * (1 - similarity) / (1 + similarity))
    first = chance.randrange(5, shingles - changed)
    others = [f"x{chance.getrandbits(48):x}" for _ in range(changed - 4)]
    copy = words[:first] + others + words[first + len(others) :]
    return " ".join(words), " ".join(copy), (shingles - changed) / (shingles + changed)


@pytest.mark.parametrize("similarity", [0.70, 0.80, 0.90])
def test_share_of_pairs_that_are_found_is_that_of_the_theory(similarity):
    chance, count, found = random.Random(similarity), 300, 0
    seen = []
    for _ in range(count):
        one, other, exact = similar_pair(chance, similarity)
        keys = SIGNATURE.keys(one), SIGNATURE.keys(other)
        found += bool((keys[0] == keys[1]).any())
        seen += [keys[0]]
    expected = 1 - (1 - exact**8) ** 14
    assert abs(found / count - expected) < 4 * math.sqrt(expected * (1 - expected) / count)
    assert len(np.unique(np.concatenate(seen))) == 14 * count  # texts with nothing in common share no key


def test_case_marks_and_white_space_make_no_difference():
    keys = SIGNATURE.keys("The cat sat on the mat, and it slept: it was \u00c9mile's mat.")
    assert np.array_equal(keys, SIGNATURE.keys("the CAT sat on\nthe mat and it slept \u2014 it was (\u00e9mile s) mat"))
    assert not (keys == SIGNATURE.keys("the cat sat on the mats and it sleeps and it is his own mat")).all()


@pytest.mark.parametrize("text", ["", " \n", "...!?", "\u3002\u3001", "\u2014 \u2026"])
def test_text_without_a_word_has_no_keys(text):
    assert not len(SIGNATURE.keys(text))


def test_texts_shorter_than_a_shingle_are_compared_as_a_whole():
    assert np.array_equal(SIGNATURE.keys("one two"), SIGNATURE.keys("One, two!"))
    assert not (SIGNATURE.keys("one two") == SIGNATURE.keys("one two three")).any()


@pytest.mark.parametrize(
    "alphabet", [(0x4E00, 0x9FFF), (0x3041, 0x3096), (0x0E01, 0x0E2E)], ids=["han", "kana", "thai"]
)
def test_scripts_without_spaces_are_compared_by_characters(alphabet):
    chance = random.Random(1)
    text = "".join(chr(chance.randint(*alphabet)) for _ in range(400))
    copy = text[:200] + "".join(chr(chance.randint(*alphabet)) for _ in range(4)) + text[204:]
    other = "".join(chr(chance.randint(*alphabet)) for _ in range(400))
    assert (SIGNATURE.keys(text) == SIGNATURE.keys(copy)).any()
    assert not (SIGNATURE.keys(text) == SIGNATURE.keys(other)).any()


def test_long_text_is_read_in_parts_without_a_seam():
    """Shingles of words are those of the definition, also across the parts in which a text is read."""
    words = [str(number) for number in range(3000)]
    text = " ".join(words)
    one = Signature(words=3, bands=1, rows=1)
    parts = [one.keys(" ".join(words[i : i + 3]))[0] for i in range(len(words) - 2)]
    by_least = {}  # the key of a text is that of its least shingle, so it is the key of one of its shingles
    by_least[one.keys(text)[0]] = True
    assert set(by_least) <= set(parts)
    for cut in (511, 512, 513, 514, 515, 1025):
        assert one.keys(" ".join(words[:cut]))[0] in parts[: cut - 2]


def text_of(number, changed=()):
    """A document of sentences; of those in ``changed``, the middle differs."""
    chance = random.Random(number)
    lines = []
    for line in range(12):
        words = [
            f"{chance.choice('bdfgklmnprst')}{chance.choice('aeiou')}{chance.getrandbits(20):x}" for _ in range(15)
        ]
        if line in changed:
            words[7] = f"changed{number}{line}{len(changed)}"
        lines.append(f"The {' '.join(words)} was there.")
    return "\n".join(lines)


@pytest.fixture(scope="module")
def copied():
    """Thirty texts alone, twelve with a near copy, a family of five, and exact copies."""
    texts = [text_of(number) for number in range(48)]
    near = [text_of(number, (3,)) for number in range(12)]
    family = [text_of(47, (line,)) for line in range(4)]
    return [*texts, *near, *family, texts[40], texts[0], near[1]]


@pytest.fixture(scope="module")
def shards_of(make_config, tokenizer_folder, tmp_path_factory):
    def shards(
        documents, *, files=1, executor=None, folder=None, rules=("near_duplicates", "duplicate_documents"), **more
    ):
        folder = folder or tmp_path_factory.mktemp("near")
        for number in range(files):
            write_jsonl(folder / f"in-{number:02d}.jsonl", documents[number::files])
        config = make_config(
            sources=(SourceConfig(input=str(folder / "in-*.jsonl"), name="all"),), tokenizer=str(tokenizer_folder),
            lengths=(64,), dupe_factor=1, buckets=2, clean=CleanConfig(rules=rules), **more,
        )  # fmt: skip
        built = build_shards(config, folder / "out", executor or Executor())
        return hashes_of_data(built.folder), built.manifests[64].statistics["corpus"]

    return shards


def test_near_copies_are_dropped_counted_and_shown(shards_of, copied):
    _, corpus = shards_of(copied)
    assert corpus["documents"] == 48
    expected = {"clusters": 13, "documents": 29, "sizes": {"2": 12, "5-8": 1}, "huge": {}}
    assert corpus["near_duplicates"].items() >= expected.items()
    lost = [text for text in copied if hash_text(text) in dropped_hashes(copied)]
    assert corpus["rules"]["near_duplicates"] == {"documents": len(lost), "characters": sum(len(t) - 11 for t in lost)}
    report = "\n".join([*describe_corpus(corpus), *example_lines(corpus)])
    assert "near duplicates: 13 clusters of 29 documents" in report
    assert "12 of 2, 1 of 5-8" in report
    assert "  near duplicates: " in report
    assert "kept of near duplicates: " in report


def dropped_hashes(documents):
    """Hashes of all documents but the smallest of each cluster, by comparing all pairs."""
    texts = {hash_text(text): SIGNATURE.keys(text) for text in documents}
    roots = {name: name for name in texts}

    def root(name):
        return name if roots[name] == name else root(roots[name])

    for a, b in itertools.combinations(texts, 2):
        if (texts[a] == texts[b]).any():
            low, high = sorted((root(a), root(b)))
            roots[high] = low
    return {name for name in texts if root(name) != name}


def test_same_text_gives_the_same_bytes_however_it_is_cut_and_ordered(shards_of, copied, monkeypatch):
    expected, corpus = shards_of(copied)
    shuffled = random.Random(1).sample(copied, len(copied))
    for documents, ways in ((copied, {"files": 11}), (copied[::-1], {"chunk_mib": 0.005}), (shuffled, {"files": 3})):
        found = shards_of(documents, **ways)
        assert found[0] == expected
        assert found[1]["rules"] == corpus["rules"]
        assert found[1]["near_duplicates"] == corpus["near_duplicates"]
    # Many groups, blocks and ranges instead of one.
    for module, name, value in (
        (grouped_hashes, "MIN_GROUP", 3), (grouped_hashes, "HASHES_PER_RANGE", 50),
        (near_duplicates, "HASHES_PER_RANGE", 7), (near_duplicates, "ROWS_AT_ONCE", 40),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    assert shards_of(shuffled, chunk_mib=0.005)[0] == expected


def test_paragraphs_of_a_dropped_document_stay_in_the_one_that_is_kept(shards_of, copied):
    """The rule on paragraphs counts no document that was dropped as a near copy."""
    both = ("near_duplicates", "duplicate_paragraphs", "duplicate_documents")
    assert shards_of(copied, rules=both)[0] == shards_of(copied)[0]


def test_large_clusters_are_named(shards_of, copied, monkeypatch):
    for module in (cleaner, near_duplicates):
        monkeypatch.setattr(module, "HUGE", 4)
    corpus = shards_of(copied)[1]
    root = min(hash_text(text) for text in copied if text.endswith(copied[47].splitlines()[-1]))
    assert corpus["near_duplicates"]["huge"] == {f"{root:016x}": 5}
    lines = "\n".join([*describe_corpus(corpus), *example_lines(corpus)])
    assert f"near duplicates: 1; documents of the largest: 5 (hash of the kept text {root:016x})" in lines
    assert "kept of many near duplicates: " in lines


def test_clusters_are_shown_from_small_to_large():
    """A manifest has its keys in the order of their letters."""
    sizes = {"1,001-10,000": 1, "10,001 or more": 2, "2": 3, "3-4": 4, "33-1,000": 5, "5-8": 6, "9-32": 7}
    assert set(sizes) == set(near_duplicates.SIZES.values())
    clusters = {"clusters": 28, "documents": 90_000, "sizes": sizes, "huge": {}, "rounds": 1}
    (line,) = stats._cluster_lines(**clusters)
    assert line.endswith("3 of 2, 4 of 3-4, 6 of 5-8, 7 of 9-32, 5 of 33-1,000, 1 of 1,001-10,000, 2 of 10,001 or more")


def test_rule_without_exact_copies_is_refused():
    with pytest.raises(ValueError, match="exact copies would stay; add duplicate_documents"):
        CleanConfig(rules=("near_duplicates",))


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
    counts = find_near_copies(build, plan := HashPlan.of(chunks, 2 * len(edges)))
    fates = {}
    for chunk in range(chunks):
        fates |= DocumentFates(near / FATES.format(chunk // plan.chunks_a_group), chunk)._fates
    return fates, counts


def hashes_of(count):
    return [hash_text(f"document {number}") for number in range(count)]


def shapes():
    chance, nodes = random.Random(5), hashes_of(600)
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
