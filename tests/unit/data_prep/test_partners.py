"""Random Bs of a unit come from a window of the split; over units and passes every token is drawn alike."""

import numpy as np
import pytest
from unit.data_prep.conftest import pair_options, write_split

from data_prep.document_set import DocumentSet
from data_prep.instances import partners
from data_prep.instances.balanced import pair_balanced
from data_prep.instances.google import pair_google
from data_prep.instances.pairs import Bucket
from data_prep.instances.partners import other_documents, other_tokens, overlaps

PAIRINGS = {"balanced": lambda *words: pair_balanced(*words, np.zeros(2000, bool)), "google": pair_google}


def uneven_split(folder, documents=30, longest=30):
    """Buckets of very different sizes, one of them empty, of documents of very different lengths."""
    rng = np.random.default_rng(0)
    counts = rng.integers(documents // 3, documents * 2, 9)
    counts[3] = 0
    return write_split(folder, [
        [rng.integers(3, longest, rng.geometric(0.08) + 1) for _ in range(count)] for count in counts
    ])  # fmt: skip


@pytest.fixture
def small_windows(monkeypatch):
    monkeypatch.setattr(partners, "PARTNER_TOKENS", 100)


@pytest.mark.parametrize("number", [0, 2, 3, 8])
def test_every_token_of_other_buckets_is_in_as_many_windows(tmp_path, small_windows, monkeypatch, number):
    """All windows that can be drawn together hold each token equally often, and none of the unit's own."""
    documents = uneven_split(tmp_path, documents=3, longest=5)
    bucket, total = Bucket(documents, number), int(documents.first_tokens[-1])
    own = documents.first_tokens[number : number + 2]
    others = total - int(np.diff(own)[0])
    counts = np.zeros(total + 1, np.int64)
    for begin in range(others):
        monkeypatch.setattr(partners, "_draw_below", lambda _, size, begin=begin: begin)
        for first, end in other_tokens(bucket, pair_options(64)):
            counts[[first, end]] += 1, -1
    counts = np.cumsum(counts)[:-1]
    is_own = (np.arange(total) >= own[0]) & (np.arange(total) < own[1])
    assert not counts[is_own].any()
    assert set(counts[~is_own]) == {max(100, int(np.diff(own)[0]))}


def test_windows_of_a_pass_tile_the_split(tmp_path, small_windows):
    """Where buckets are equal, every token is in the window of one unit in every pass."""
    documents = write_split(tmp_path, [[[40, 60]] * 10] * 7)
    seen = set()
    for pass_number in range(20):
        counts = np.zeros(7001, np.int64)
        for number in range(7):
            ranges = other_tokens(Bucket(documents, number), pair_options(64, pass_number=pass_number))
            seen.add((number, *ranges))
            for first, end in ranges:
                counts[[first, end]] += 1, -1
        assert set(np.cumsum(counts)[:-1]) == {1}
    assert len(seen) > 100  # each unit has another window in each pass


@pytest.mark.parametrize("size", [7, 100])
def test_windows_over_documents_tile_them(tmp_path, small_windows, size):
    documents = write_split(tmp_path, [[[40, 60]] * size] * 5)
    for pass_number in range(10):
        counts = np.zeros(5 * size, np.int64)
        for number in range(5):
            first, count = other_documents(Bucket(documents, number), pair_options(64, pass_number=pass_number))
            counts[(first + np.arange(count)) % (5 * size)] += 1
        assert set(counts) == {1}


def test_a_small_split_is_one_window(tmp_path):
    documents = uneven_split(tmp_path)
    for number in range(documents.num_buckets):
        bucket = Bucket(documents, number)
        ranges = other_tokens(bucket, pair_options(64))
        assert sum(end - first for first, end in ranges) == documents.first_tokens[-1] - len(
            documents.bucket_tokens(number)
        )
        assert all(first in documents.first_tokens and end in documents.first_tokens for first, end in ranges)
        assert other_documents(bucket, pair_options(64)) == (0, documents.num_documents)


def test_overlapped_buckets_hold_the_range(tmp_path):
    documents = uneven_split(tmp_path)
    firsts = documents.first_tokens
    for begin, end in ((0, 1), (firsts[1], firsts[1] + 1), (firsts[1] - 1, firsts[4] + 1), (5, firsts[-1])):
        expected = [n for n in range(9) if max(begin, firsts[n]) < min(end, firsts[n + 1])]
        assert [n for n in overlaps(firsts, begin, end) if firsts[n] < firsts[n + 1]] == expected


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_pairs_of_a_unit_do_not_depend_on_the_units_before(tmp_path, small_windows, pairing):
    """Whatever a process has opened and walked before, as under any number of workers."""
    documents, fresh = uneven_split(tmp_path), DocumentSet.open(tmp_path, "train", 2000)
    options = pair_options(64, pairing=pairing)
    for number in (7, 0, 2, 8, 1, 7):
        one, other = (PAIRINGS[pairing](Bucket(split, number), options) for split in (documents, fresh))
        assert np.array_equal(one.b_start, other.b_start)
        assert np.array_equal(one.label, other.label)
        fresh = DocumentSet.open(tmp_path, "train", 2000)


@pytest.mark.parametrize("passes", [40, pytest.param(400, marks=pytest.mark.soak)])
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_random_seconds_are_uniform_over_the_split(tmp_path, small_windows, pairing, passes):
    """Chi-square of the parts that random Bs come from; the unit's own bucket is allowed for.

    Parts of the split are as large as buckets in the mean, but lie across their borders. The counts of a pass are drawn
    from few windows, so a part is counted by pass, and the spread over passes is what its mean is measured by.
    """
    documents = uneven_split(tmp_path)
    firsts, column = documents.bucket_starts[:, 0 if pairing == "google" else 2], []
    borders = np.linspace(0, firsts[-1], 9)
    for pass_number in range(passes):
        expected, drawn = np.zeros(8), np.zeros(8)
        for number in range(documents.num_buckets):
            pairs = PAIRINGS[pairing](
                Bucket(documents, number), pair_options(64, pairing=pairing, pass_number=pass_number)
            )
            b_start = pairs.b_start[pairs.label == 1]
            where = documents.document_of_token(b_start) if pairing == "google" else b_start
            drawn += np.histogram(where, borders)[0]
            is_other = np.ones(firsts[-1])
            if pairing == "balanced":
                is_other[firsts[number] : firsts[number + 1]] = 0
            shares = np.add.reduceat(is_other, borders[:-1].astype(int)) / is_other.sum()
            expected += len(b_start) * shares
        column.append(drawn - expected)
    difference = np.array(column)
    scores = difference.mean(0) / (difference.std(0) / np.sqrt(passes))
    assert (scores**2).sum() < 27, scores  # 8 parts: the 99.9th percentile is 26.1
    assert abs(difference.sum()) < 1e-6 * passes
