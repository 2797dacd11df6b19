import pytest
from support.soak import in_soak

from data_prep.checks.verify import verify
from data_prep.execution.executors import Executor

SHOWN = ("objective", "pairing", "masking")
"""Settings that a shard states."""


@pytest.mark.parametrize(
    "changes",
    [
        {"objective": "sop"},
        {"mask_unit": "span", "pairing": "google"},
        {"objective": "none", "masking": "dynamic", "short_seq_prob": 0.0},
        *in_soak({"objective": "none"}, {"pairing": "google"}, {"masking": "dynamic"}, {"mask_unit": "whole_word"}),
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_every_objective_gives_sound_shards(changes, build, tokenizer):
    result = build(tokenizer=tokenizer, dupe_factor=1, **changes)
    for length, manifest in result.manifests.items():
        assert verify(result.folder / "instances" / str(length), Executor(), use_text=True).problems == []
        stated = {"objective": "nsp", "pairing": "balanced", "masking": "static", **changes}
        assert vars(manifest.metadata).items() >= {key: stated[key] for key in SHOWN}.items()


def test_length_does_not_change_what_another_length_holds(build, built, tokenizer):
    alone, beside = (result.manifests[128] for result in (build(tokenizer=tokenizer, lengths=(128,)), built))
    assert [entry.sha256 for entry in alone.shards] == [entry.sha256 for entry in beside.shards]


def test_masked_share_of_whole_words_and_spans_is_that_of_tokens(build, tokenizer):
    for unit in ("whole_word", "span"):
        manifest = build(unit, tokenizer=tokenizer, dupe_factor=1, lengths=(64,), mask_unit=unit).manifests[64]
        counts = manifest.statistics["instances"]["train"]
        assert 0.13 < counts["masked_tokens"] / counts["tokens"] < 0.16
        assert 0.75 < counts["shown_as_mask"] / counts["masked_tokens"] < 0.85
        assert manifest.metadata.masked_lm_prob == 0.15
