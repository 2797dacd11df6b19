"""Random Bs of a unit come from a part of the split; over units and passes all of it is used alike."""

import numpy as np
import pytest
from unit.data_prep.conftest import pair_options, whole_words, write_split

from data_prep.documents.document_set import DocumentSet
from data_prep.instances import balanced, google
from data_prep.instances.balanced import pair_balanced, partner_buckets
from data_prep.instances.google import other_documents, pair_google
from data_prep.instances.pairs import DocumentBucket

PAIRINGS = {"balanced": lambda *words: pair_balanced(*words, whole_words()), "google": pair_google}


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
    monkeypatch.setattr(balanced, "PARTNER_TOKENS", 100)
    monkeypatch.setattr(google, "PARTNER_TOKENS", 100)


@pytest.mark.parametrize("buckets", [1, 2, 3, 7, 20])
def test_partners_of_a_pass_are_groups_and_change_with_it(tmp_path, small_windows, buckets):
    documents, groups = write_split(tmp_path, [[[40, 60]] * 10] * buckets), set()
    for pass_number in range(200):
        options = pair_options(64, pass_number=pass_number)
        partners = [tuple(partner_buckets(DocumentBucket(documents, number), options)) for number in range(buckets)]
        assert all(index in own and all(partners[other] == own for other in own) for index, own in enumerate(partners))
        assert {len(own) for own in partners} <= ({1} if buckets == 1 else {2, 3})
        groups.update(partners)
    # Every bucket meets every other one.
    pairs = {(one, other) for group in groups for one in group for other in group}
    assert len(pairs) == buckets**2


@pytest.mark.parametrize("size", [7, 100])
def test_windows_over_documents_tile_them(tmp_path, small_windows, size):
    documents = write_split(tmp_path, [[[40, 60]] * size] * 5)
    for pass_number in range(10):
        counts = np.zeros(5 * size, np.int64)
        for number in range(5):
            first, count = other_documents(DocumentBucket(documents, number), pair_options(64, pass_number=pass_number))
            counts[(first + np.arange(count)) % (5 * size)] += 1
        assert set(counts) == {1}


def test_a_small_split_is_one_window(tmp_path):
    documents = uneven_split(tmp_path)
    for number in range(documents.num_buckets):
        bucket = DocumentBucket(documents, number)
        assert partner_buckets(bucket, pair_options(64)) == list(range(documents.num_buckets))
        assert other_documents(bucket, pair_options(64)) == (0, documents.num_documents)


def test_every_second_of_a_pass_is_used_once(tmp_path, small_windows, monkeypatch):
    """Over all units of a pass, whoever makes them: random pairs exchange their Bs."""
    documents, options = uneven_split(tmp_path), pair_options(64, pass_number=3)
    used = [PAIRINGS["balanced"](DocumentBucket(documents, number), options) for number in range(9)]
    monkeypatch.setattr(balanced, "_exchange_seconds", lambda *_: None)
    fresh = DocumentSet.open(tmp_path, "train", 2000)
    planned = [PAIRINGS["balanced"](DocumentBucket(fresh, number), options) for number in range(9)]
    starts, true = (np.sort(np.concatenate([pairs.b_start for pairs in part])) for part in (used, planned))
    assert np.array_equal(starts, true)
    assert len(np.unique(starts)) > 0.97 * len(starts)


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_pairs_of_a_unit_do_not_depend_on_the_units_before(tmp_path, small_windows, pairing):
    """Whatever a process has opened and walked before, as under any number of workers."""
    documents, fresh = uneven_split(tmp_path), DocumentSet.open(tmp_path, "train", 2000)
    options = pair_options(64, pairing=pairing)
    for number in (7, 0, 2, 8, 1, 7):
        one, other = (PAIRINGS[pairing](DocumentBucket(split, number), options) for split in (documents, fresh))
        assert np.array_equal(one.b_start, other.b_start)
        assert np.array_equal(one.label, other.label)
        fresh = DocumentSet.open(tmp_path, "train", 2000)


@pytest.mark.parametrize("passes", [40, pytest.param(400, marks=pytest.mark.soak)])
def test_random_documents_are_uniform_over_the_split(tmp_path, small_windows, passes):
    """Chi-square of the parts that random Bs of the original's pairing come from.

    Parts of the split are as large as buckets in the mean, but lie across their borders. The counts of a pass are drawn
    from few windows, so a part is counted by pass, and the spread over passes is what its mean is measured by.
    """
    documents = uneven_split(tmp_path)
    borders, column = np.linspace(0, documents.num_documents, 9), []
    for pass_number in range(passes):
        options = pair_options(64, pairing="google", pass_number=pass_number)
        pairs = [pair_google(DocumentBucket(documents, number), options) for number in range(documents.num_buckets)]
        starts = np.concatenate([part.b_start[part.label == 1] for part in pairs])
        drawn = np.histogram(documents.document_of_token(starts), borders)[0]
        column.append(drawn - len(starts) * np.diff(borders) / borders[-1])
    difference = np.array(column)
    scores = difference.mean(0) / (difference.std(0) / np.sqrt(passes))
    assert (scores**2).sum() < 27, scores  # 8 parts: the 99.9th percentile is 26.1
