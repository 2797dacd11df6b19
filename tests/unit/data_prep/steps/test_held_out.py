"""Which documents are held out: by rank of a hash of their text, and never too few for the objective."""

import math

import numpy as np
import pytest
from unit.data_prep.conftest import SENTENCES

from data_prep.checks.corpus_counts import needed
from data_prep.config.build import BuildConfig, SourceConfig
from data_prep.config.cleaning import CleanConfig
from data_prep.execution.executors import Executor
from data_prep.steps import step3_tokens
from data_prep.steps.step3_tokens import draws_of, find_held_out_bound, split_of
from megabert.foundation.errors import DataError


def config_of(**changes):
    return BuildConfig(sources=(SourceConfig(input="x"),), **changes)


def held_out_of(monkeypatch, config, hashes, several=slice(None)):
    """Numbers of the texts that are held out."""
    hashes = np.array(hashes, np.uint64)
    is_several = np.zeros(len(hashes), bool)
    is_several[several] = True
    monkeypatch.setattr(
        step3_tokens, "read_draws", lambda _, rows: (draws_of(hashes[rows]), draws_of(hashes[rows][is_several[rows]]))
    )
    parts = np.array_split(np.random.default_rng(0).permutation(len(hashes)), 3)
    with Executor() as executor:
        below = find_held_out_bound(config, len(hashes), parts, None, executor)
    return np.flatnonzero(split_of(hashes, below))


@pytest.mark.parametrize("objective", ["nsp", "sop", "none"])
@pytest.mark.parametrize("share", [0.001, 0.02, 0.3, 0.99])
@pytest.mark.parametrize("documents", [2, 3, 4, 5, 12, 62, 1000])
def test_share_is_reached_and_both_splits_have_what_they_need(monkeypatch, documents, share, objective):
    config, hashes = config_of(objective=objective, validation_share=share), np.arange(documents) + 7
    least = needed(config)
    if documents < 2 * least:
        with pytest.raises(DataError, match="different document"):
            held_out_of(monkeypatch, config, hashes)
        return
    chosen = held_out_of(monkeypatch, config, hashes)
    assert len(chosen) == min(max(math.ceil(share * documents), least), documents - least)
    assert set(chosen) == set(np.argsort(draws_of(hashes.astype(np.uint64)))[: len(chosen)])


def test_copies_count_once_and_stay_together(monkeypatch):
    hashes = np.repeat(np.arange(10), [1, 50, 1, 1, 1, 1, 1, 1, 1, 1])
    chosen = held_out_of(monkeypatch, config_of(validation_share=0.3), hashes)
    assert len(np.unique(hashes[chosen])) == 3
    assert not set(hashes[chosen]) & set(np.delete(hashes, chosen))


def test_documents_of_one_sentence_count_for_the_share_alone(monkeypatch):
    """Pairs need others, which are held out and left to train on as well."""
    hashes = np.arange(40)
    several = np.argsort(draws_of(hashes.astype(np.uint64)))[4:]  # the others would be all that is held out
    chosen = held_out_of(monkeypatch, config_of(validation_share=0.05), hashes, several)
    assert np.isin(chosen, several).sum() == 2


def test_share_changes_few_documents_when_some_are_added(monkeypatch):
    config = config_of(validation_share=0.1)
    before, after = (set(held_out_of(monkeypatch, config, np.arange(count))) for count in (500, 520))
    assert len(before - after) <= 6


@pytest.mark.parametrize(("objective", "documents"), [("nsp", 3), ("sop", 1), ("none", 1)])
def test_too_few_documents_are_refused_before_the_vocabulary(tmp_path, small_build, objective, documents):
    texts = [f"{SENTENCES} This is text number {number}." for number in range(documents)]
    flags = ["--objective", objective, "--validation-share"]
    for dry_run in (["--dry-run"], []):
        message = small_build(*flags, "0.02", *dry_run, texts=texts, code=3).err
    assert f"objective={objective} needs {needed(config_of(objective=objective))} to train on and" in message
    assert not (tmp_path / "out" / "tokenizer").exists()
    # Each remedy that is named works, in the same folder.
    assert ("--objective sop or none" in message) == (objective == "nsp")
    assert "--validation-share 0)" in message
    for dry_run in (["--dry-run"], []):
        small_build(*flags, "0", *dry_run, texts=texts)
    if objective == "nsp":
        small_build(*flags, "0.02", "--objective", "none", texts=texts, output="other")


def test_documents_that_a_rule_drops_do_not_count_for_the_ranking(build, monkeypatch):
    monkeypatch.setattr(step3_tokens, "MOST_RANKED", 50)
    texts = [f"{SENTENCES} This is text number {number}." for number in range(20)]
    texts += [f"Short text {number}." for number in range(80)]
    own = {"vocab_size": 200, "lengths": (32,), "clean": CleanConfig(rules=("length",), min_characters=60)}
    # The second and third time, documents that are finished are split again.
    for share, number in ((0.25, 5), (0.35, 7), (0.5, 10)):
        corpus = build(texts=texts, validation_share=share, **own).manifests[32].statistics["corpus"]
        assert (corpus["documents"], corpus["validation_documents"]) == (20, number)
