"""Minimal pairs: reading them, accuracy with ties and interval, and the form of the sets that come with the package."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from megabert.foundation.errors import DataError
from megabert.training.probes.minimal_pairs import SETS, read_pairs, score_groups, sentences_of


def write_pairs(path, *rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def pair(good, bad, **more):
    return {"sentence_good": good, "sentence_bad": bad, **more}


def test_pairs_are_read_as_blimp_writes_them(tmp_path):
    row = pair(
        "a b", "b a", UID="order", field="syntax", linguistics_term="word order", pairID="0", one_prefix_method=True
    )
    path = write_pairs(tmp_path / "own.jsonl", row, pair("c", "d"))
    first, second = read_pairs(path)
    assert (first.UID, first.field, first.linguistics_term) == ("order", "syntax", "word order")
    assert second.UID == "own"
    assert sentences_of([first, second]) == ["a b", "c", "b a", "d"]


def test_file_with_the_name_of_a_set_is_read_by_its_whole_path_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "korean").mkdir()
    assert len(read_pairs(Path("korean"))) == 240, "a folder is no file of pairs"
    write_pairs(tmp_path / "english", pair("a b", "b a"))
    with pytest.raises(DataError, match=f"is a file here, .*whole path, {tmp_path}/english; .*rename the file"):
        read_pairs(Path("english"))
    assert len(read_pairs(tmp_path / "english")) == 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "has no pairs"),
        ([pair("a", "b"), pair("a", " a ")], "own.jsonl:2: both sentences are the same"),
        ([pair("", "a")], "own.jsonl:1: a sentence is empty"),
        ([{"sentence_good": "a"}], "own.jsonl:1: damaged or edited .sentence_bad"),
        ([pair("a", 1)], "own.jsonl:1: damaged or edited .sentence_bad"),
    ],
)
def test_what_is_no_pair_is_named_by_its_line(rows, message, tmp_path):
    with pytest.raises(DataError, match=message):
        read_pairs(write_pairs(tmp_path / "own.jsonl", *rows))


def test_unknown_set_lists_the_sets():
    with pytest.raises(DataError, match=r"frisian: not there\. .* english, korean"):
        read_pairs(Path("frisian"))


def test_accuracy_counts_a_tie_as_half(tmp_path):
    rows = [pair("a", "b", UID="x"), pair("c", "d", UID="y"), pair("e", "f", UID="x"), pair("g", "h", UID="x")]
    pairs = read_pairs(write_pairs(tmp_path / "own.jsonl", *rows))
    # x: 2 above 1, a tie, 1 below 2; y: right.
    x, y, everything = score_groups(pairs, np.array([-1.0, -3, -5, -2, -2, -4, -5.00001, -1]))
    assert (x.group, x.pairs, x.right, x.ties, x.accuracy) == ("x", 3, 1, 1, 0.5)
    assert (y.group, y.accuracy) == ("y", 1.0)
    assert (everything.group, everything.accuracy) == ("all", 2.5 / 4)


def test_group_named_all_is_kept_apart_from_all_pairs(tmp_path):
    rows = [pair("a", "b", UID="all"), pair("c", "d", UID="x")]
    pairs = read_pairs(write_pairs(tmp_path / "own.jsonl", *rows))
    scored = score_groups(pairs, np.array([2.0, 1, 1, 2]))
    assert [(row.group, row.pairs, row.accuracy) for row in scored] == [("all", 1, 1.0), ("x", 1, 0.0), ("all", 2, 0.5)]


def test_interval_is_wilsons(tmp_path):
    pairs = read_pairs(write_pairs(tmp_path / "own.jsonl", *(pair(f"a{i}", f"b{i}") for i in range(10))))
    scores = np.concatenate([np.zeros(10), np.where(np.arange(10) < 8, -1.0, 1.0)])
    *_, everything = score_groups(pairs, scores)
    # 8 of 10: (0.8 + 1.96^2 / 20 +- 1.96 sqrt(0.016 + 1.96^2 / 400)) / (1 + 1.96^2 / 10)
    assert everything.interval == pytest.approx((0.4902, 0.9433), abs=1e-4)


@pytest.mark.parametrize("name", SETS)
def test_own_sets_have_twelve_phenomena_of_twenty_pairs(name):
    pairs = read_pairs(Path(name))
    assert set(Counter(one.UID for one in pairs).values()) == {20}
    assert len({one.UID for one in pairs}) == 12
    assert all(one.field and one.linguistics_term for one in pairs)
    assert len(set(sentences_of(pairs))) == 2 * len(pairs)


@pytest.mark.parametrize("name", SETS)
def test_sentences_of_a_pair_differ_in_one_place(name):
    for one in read_pairs(Path(name)):
        good, bad = (sentence.rstrip(".?").split() for sentence in (one.sentence_good, one.sentence_bad))
        places = [index for index, words in enumerate(zip(good, bad, strict=True)) if words[0] != words[1]]
        is_swap = len(places) == 2 and places[1] - places[0] == 1 and Counter(good) == Counter(bad)
        assert len(places) == 1 or is_swap or one.UID == "word_order", one
