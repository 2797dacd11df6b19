import numpy as np
import pytest
from unit.data_prep.conftest import pair_options, write_split

from data_prep.checks.verify import verify
from data_prep.documents.document_set import DocumentSet
from data_prep.execution.executors import Executor
from data_prep.instances.pairs import make_pairs
from megabert.foundation.errors import ConfigError, DataError

LEAST = 1000


@pytest.mark.parametrize("objective", ["nsp", "sop", "none"])
def test_short_documents_give_no_instance_of_a_length_and_are_counted(objective, build, tokenizer):
    result = build(tokenizer=tokenizer, dupe_factor=1, min_tokens=(0, LEAST), objective=objective)
    tokens = {}
    for split in ("train", "validation"):
        documents = DocumentSet.open(result.folder / "documents", split, 2000)
        parts = [documents.sentences(number) for number in range(documents.num_buckets)]
        tokens[split] = np.concatenate([np.diff(starts[of_documents]) for of_documents, starts in parts])
    every = np.concatenate(list(tokens.values()))
    corpus = result.manifests[128].statistics["corpus"]
    assert corpus["short_documents"] == {"64": 0, "128": np.count_nonzero(every < LEAST)}
    assert corpus["short_tokens"] == {"64": 0, "128": every[every < LEAST].sum()}
    assert 0 < corpus["short_documents"]["128"] < len(every)
    for length in ("64", "128"):
        assert verify(result.folder / "instances" / length, Executor(), use_text=True).problems == []
    counts = result.manifests[128].statistics["instances"]["train"]
    assert counts["tokens"] <= 1.2 * tokens["train"][tokens["train"] >= LEAST].sum()


@pytest.mark.parametrize("objective", ["nsp", "sop", "none"])
def test_long_documents_are_cut_as_if_no_other_were_left_out(objective, tokenizer_folder, tmp_path):
    rng = np.random.default_rng(0)
    lengths = [rng.integers(5, 40, count) for count in rng.integers(2, 60, 300)]
    documents = write_split(tmp_path, [lengths])
    of_documents, starts = documents.sentences(0)
    is_long = np.diff(starts[of_documents]) >= 400
    assert 0 < is_long.sum() < len(is_long)
    every, long = (
        make_pairs(documents, 0, pair_options(128, objective=objective, min_tokens=least), tokenizer_folder)
        for least in (0, 400)
    )
    document = np.searchsorted(starts[of_documents], long.a_start, side="right") - 1
    assert set(document) == set(np.flatnonzero(is_long))
    if objective != "nsp":  # there a label decides where the next instance begins, and labels are dealt over documents
        own = np.searchsorted(starts[of_documents], every.a_start, side="right") - 1
        assert set(long.key) == set(every.key[is_long[own]])
    else:
        assert 0.45 < long.label.mean() < 0.55


def test_a_length_without_documents_is_refused_before_instances_are_made(build, tokenizer, tmp_path):
    with pytest.raises(DataError, match=r"fewer than 10,000,000 tokens.*length 128.*--min-tokens"):
        build(tokenizer=tokenizer, min_tokens=(0, 10_000_000))
    assert not (tmp_path / "out" / "instances").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"min_tokens": (1,)}, "one number"),
        ({"min_tokens": (0, -1)}, "one number"),
        ({"min_tokens": (0, 10**12)}, "one number"),
        ({"min_tokens": (0, 100), "pairing": "google"}, "use balanced"),
    ],
)
def test_impossible_bounds_are_refused(changes, message, make_config):
    with pytest.raises((ConfigError, ValueError), match=message):
        make_config(**changes)


def test_dry_run_and_summary_say_what_is_left_out(texts, tokenizer, small_build):
    flags = ["--lengths", "64", "128", "--min-tokens", "0", "100", "--dry-run"]
    printed = small_build(*flags, texts=[*texts[:20], *(["A short one."] * 20)]).out
    assert "length 128: of 40 documents looked at, about 50%" in printed
    assert "length 64" not in printed
    flags = ["--tokenizer", tokenizer, "--lengths", "64", "--min-tokens", "500"]
    assert "too short for length 64: " in small_build(*flags, texts=[*texts, *texts[0].split("\n")[:20]]).out
