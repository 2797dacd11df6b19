"""Minimal pairs by a model: the scores of `megabert pll`, by group; the table, the JSON and the random baseline."""

import json

import numpy as np
import pytest

from megabert.cli import main
from megabert.downstream.export.sources import open_source
from megabert.downstream.inspection.pseudo_likelihood import SentenceScorer, score_pairs
from megabert.training.probes.minimal_pairs import read_pairs

PAIRS = [("the cat sat.", "the cat the."), ("the dogs sat.", "the dog sats."), ("cat dog", "dog cat"), ("ab", "cd")]


@pytest.fixture
def pairs(tmp_path):
    rows = [{"sentence_good": a, "sentence_bad": b, "UID": f"group{i % 2}"} for i, (a, b) in enumerate(PAIRS)]
    path = tmp_path / "own.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_pairs_are_right_if_the_good_sentence_scores_higher(model_folder, pairs):
    scorer = SentenceScorer(open_source(str(model_folder)))
    (result,) = score_pairs(scorer, {"own": read_pairs(pairs)})
    good, bad = (scorer.score([pair[side] for pair in PAIRS]).scores_S for side in (0, 1))
    good_pieces, bad_pieces = (scorer.score([pair[side] for pair in PAIRS]).counts_S for side in (0, 1))
    even, odd, everything = result.groups("UID")
    assert even.right == int((good > bad)[[0, 2]].sum())
    # The last pair is two words that the vocabulary lacks: [UNK] both.
    assert (odd.right, odd.ties) == (int((good > bad)[1]), 1)
    assert everything.right == even.right + odd.right
    assert result.pieces_apart == pytest.approx(np.mean(bad_pieces - good_pieces))


def test_command_prints_a_table_and_writes_json(model_folder, pairs, tmp_path, capsys):
    words = ["pairs", str(pairs), "--model", str(model_folder), "--device", "cpu", "--json", str(tmp_path / "s.json")]
    assert main(words) == 0
    content = json.loads((tmp_path / "s.json").read_text())
    printed = capsys.readouterr().out
    (one,) = content["sets"]
    assert [row["group"] for row in one["UID"]] == ["group0", "group1"]
    assert one["ties"] == 1
    assert f"{100 * one['accuracy']:.1f}" in printed
    assert "group1" in printed


def test_random_weights_are_a_baseline_of_the_same_shape(model_folder, pairs, megabert):
    tables = []
    for flags in ([], ["--random-weights"]):
        tables.append(megabert("pairs", pairs, "--model", model_folder, "--device", "cpu", *flags).out)
    assert len(tables[0].splitlines()) == len(tables[1].splitlines())
    source = open_source(str(model_folder))
    trained, random = (SentenceScorer(source, is_random=flag).score(["the cat"]) for flag in (False, True))
    assert trained.scores_S[0] != random.scores_S[0]


def test_all_sets_are_read_before_one_is_scored(model_folder, pairs, tmp_path, megabert):
    (tmp_path / "bad.jsonl").write_text("{}\n")
    output = megabert("pairs", pairs, tmp_path / "bad.jsonl", "--model", model_folder, code=3)
    assert "bad.jsonl:1" in output.err
    assert not output.out
