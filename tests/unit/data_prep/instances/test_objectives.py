"""Shards of every objective are sound; instances of one segment are whole sentences if they fit."""

from itertools import product

import numpy as np
import pytest
from support.soak import in_soak
from unit.data_prep.conftest import bundled

from data_prep.checks.verify import verify
from data_prep.execution.executors import Executor
from data_prep.instances.pair_walk_loops import WalkOptions, walk_documents

SHOWN = ("objective", "pairing", "masking")
"""Settings that a shard states."""
CHANGES = [{}, {"objective": "sop"}, {"objective": "none"}, {"pairing": "google"}, {"masking": "dynamic"}]
CHANGES.append({"mask_unit": "whole_word"})


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("", {"objective": "sop"}),
        ("", {"mask_unit": "span", "pairing": "google"}),
        ("", {"objective": "none", "masking": "dynamic", "short_seq_prob": 0.0}),
        *in_soak(*product(("public_domain", "korean"), CHANGES)),
    ],
    ids=str,
)
def test_every_objective_gives_sound_shards(name, changes, build, tokenizer):
    given = bundled(name, **changes) if name else {"tokenizer": tokenizer, "dupe_factor": 1, **changes}
    result = build(**given)
    for length, manifest in result.manifests.items():
        assert verify(result.folder / "instances" / str(length), Executor(), use_text=True).problems == []
        stated = {"objective": "nsp", "pairing": "balanced", "masking": "static", **changes}
        assert vars(manifest.metadata).items() >= {key: stated[key] for key in SHOWN}.items()


def test_length_does_not_change_what_another_length_holds(build, built, tokenizer):
    alone, beside = (result.manifests[128] for result in (build(tokenizer=tokenizer, lengths=(128,)), built))
    assert [entry.sha256 for entry in alone.shards] == [entry.sha256 for entry in beside.shards]


LONGEST = 126
IDS = np.array([100, 1100, 1105, 1106, 9000])
KEYS = np.array([7, 8, 9, 10], np.uint64)


def walk(document_starts, starts_S, short_seq_prob=0.0, min_tokens=0, pass_key=3):
    options = WalkOptions(np.uint64(pass_key), short_seq_prob, LONGEST, False, min_tokens, False, False)
    return walk_documents(np.array(document_starts), np.array(starts_S), KEYS[: len(document_starts) - 1], options)


@pytest.mark.parametrize(
    ("lengths", "parts"),
    [
        ([60, 66], [126]),
        ([60, 67], [60, 67]),
        ([300], [126, 126, 48]),
        # What is left of a long sentence is joined by the next whole ones, as a sentence of its own would be.
        ([10, 200, 40, 40], [10, 126, 114, 40]),
        ([126, 127, 125], [126, 126, 126]),
        ([1, 127, 1, 127, 1], [1, 126, 2, 126, 2]),
    ],
    ids=str,
)
def test_instances_end_where_sentences_end_if_one_fits(lengths, parts):
    starts, stops, _ = walk([0, len(lengths)], np.cumsum([5, *lengths]))
    assert (stops - starts).tolist() == parts
    assert (starts[0], stops[-1]) == (5, 5 + sum(lengths))
    assert (stops[:-1] == starts[1:]).all()


@pytest.mark.parametrize("short_seq_prob", [0.0, 0.1, 1.0])
def test_random_documents_are_used_once(short_seq_prob):
    rng = np.random.default_rng(0)
    lengths = np.where(rng.random(400) < 0.1, rng.integers(1, 700, 400), rng.integers(1, 40, 400))
    starts_S = np.cumsum([50, *lengths])
    documents = np.array([0, 1, 150, 151, 400])
    starts, stops, keys = walk(documents, starts_S, short_seq_prob)
    assert (starts[0], stops[-1]) == (50, starts_S[-1])
    assert (stops[:-1] == starts[1:]).all()
    assert len(set(keys.tolist())) == len(keys)
    assert set(starts_S[documents[1:]].tolist()) <= set(stops.tolist())
    assert ((stops - starts >= 1) & (stops - starts <= LONGEST)).all()
    is_cut = ~np.isin(stops, starts_S)
    assert is_cut.any()
    assert ((stops - starts == LONGEST) | (short_seq_prob > 0))[is_cut].all()


def test_documents_of_ids_are_cut_into_parts_of_the_length_and_short_ones_move_the_cuts():
    documents = range(len(IDS))
    starts, stops, _ = walk(documents, IDS)
    assert (starts[0], stops[-1]) == (100, 9000)
    assert set((stops - starts)[~np.isin(stops, IDS)]) == {LONGEST}
    first, second = (walk(documents, IDS, short_seq_prob=0.5, pass_key=key) for key in (3, 4))
    lengths = set((first[1] - first[0]).tolist())
    assert lengths <= set(range(1, LONGEST + 1))
    assert len(lengths) > 20
    assert first[0].tolist() != second[0].tolist()


def test_short_documents_are_left_out():
    starts, stops, _ = walk(range(len(IDS)), IDS, min_tokens=1000)
    assert starts[0] == 100
    assert (stops - starts).sum() == 1000 + 9000 - 1106
