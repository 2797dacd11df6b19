import pyarrow as pa
import pytest
from support.soak import in_soak

from data_prep.checks.verify import verify
from data_prep.execution.executors import Executor
from data_prep.pipeline import build_shards


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
def test_every_objective_gives_sound_shards(changes, make_config, tokenizer_folder, tmp_path):
    config = make_config(tokenizer=str(tokenizer_folder), dupe_factor=1, **changes)
    result = build_shards(config, tmp_path / "out", Executor())
    for length in config.lengths:
        folder = tmp_path / "out" / "instances" / str(length)
        assert verify(folder, Executor(), use_text=True).problems == []
        metadata = result.manifests[length].metadata
        assert (metadata.objective, metadata.pairing, metadata.masking) == (
            config.objective,
            config.pairing,
            config.masking,
        )


def test_dynamic_masking_leaves_masks_to_the_loader(make_config, tokenizer_folder, tmp_path):
    config = make_config(tokenizer=str(tokenizer_folder), dupe_factor=1, lengths=(64,), masking="dynamic")
    result = build_shards(config, tmp_path / "out", Executor())
    with pa.ipc.open_file(tmp_path / "out/instances/64" / result.manifests[64].shards[0].file) as reader:
        batch = reader.get_batch(0)
    assert len(batch["masked_lm_ids"].flatten()) == 0
    assert result.manifests[64].metadata.special_ids["mask"] not in set(batch["input_ids"].flatten().to_pylist())


def test_length_does_not_change_what_another_length_holds(make_config, built, tokenizer_folder, tmp_path):
    config = make_config(tokenizer=str(tokenizer_folder), lengths=(128,))
    result = build_shards(config, tmp_path / "out", Executor())
    assert [entry.sha256 for entry in result.manifests[128].shards] == [
        entry.sha256 for entry in built.manifests[128].shards
    ]


def test_masked_share_of_whole_words_and_spans_is_that_of_tokens(make_config, tokenizer_folder, tmp_path):
    for unit in ("whole_word", "span"):
        config = make_config(tokenizer=str(tokenizer_folder), dupe_factor=1, lengths=(64,), mask_unit=unit)
        result = build_shards(config, tmp_path / unit, Executor())
        counts = result.manifests[64].statistics["instances"]["train"]
        assert 0.13 < counts["masked_tokens"] / counts["tokens"] < 0.16
        assert 0.75 < counts["shown_as_mask"] / counts["masked_tokens"] < 0.85
        assert result.manifests[64].metadata.masked_lm_prob == config.masked_lm_prob
