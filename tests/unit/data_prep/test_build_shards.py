"""What a build writes: how shards are stored and read by others, and what the manifest says of them."""

import json
import os
import shutil

import numpy as np
import pyarrow as pa
import pytest
from unit.data_prep.builds import read_shard
from unit.data_prep.conftest import SENTENCES, write_jsonl

from data_prep.checks.verify import verify
from data_prep.config.build import SourceConfig
from data_prep.execution.executors import Executor
from data_prep.steps import step6_instances
from megabert.settings.config.loading import to_dict
from megabert.tokens.shards.folder import lengths_path, read_manifest
from megabert.tokens.tokenization import load_tokenizer


def test_shards_of_several_buckets_hold_the_rows_of_each_one_after_the_other(build, tokenizer, monkeypatch):
    """What a corpus of gigabytes takes, with shards of a few kilobytes."""
    monkeypatch.setattr(step6_instances, "MIN_SHARDS", 2)
    parts, whole = (build(str(mib), tokenizer=tokenizer, buckets=7, shard_mib=mib) for mib in (0.01, 0.28))
    before, after = (
        [entry for entry in result.manifests[64].shards if (entry.split, entry.pass_number) == ("train", 1)]
        for result in (parts, whole)
    )
    assert [(entry.bucket, entry.buckets) for entry in before] == [(bucket, 1) for bucket in range(7)]
    assert [(entry.bucket, entry.buckets) for entry in after] == [(0, 3), (3, 3), (6, 1)]

    def rows(result, entries):
        files = [result.folder / "instances" / "64" / entry.file for entry in entries]
        return pa.concat_tables([pa.ipc.open_file(file).read_all() for file in files])

    assert rows(whole, after).equals(rows(parts, before))
    assert whole.manifests[64].statistics == parts.manifests[64].statistics
    assert not verify(whole.folder / "instances" / "64", Executor(), use_text=True).problems


@pytest.mark.parametrize("sizes", [[5], [4, 4], [1, 1, 1], [3, 9, 2, 0, 4, 1], [8, 1], [0, 3]])
def test_rows_of_several_buckets_make_even_record_batches(sizes):
    numbers = iter(range(100))
    schema = pa.schema([("ids", pa.list_(pa.int64()))])
    parts = [pa.record_batch({"ids": [[next(numbers)] for _ in range(size)]}, schema=schema) for size in sizes]
    lengths = [len(batch) for batch in step6_instances._evenly(iter(parts), 4)]
    assert lengths == [4] * (sum(sizes) // 4) + [sum(sizes) % 4] * (sum(sizes) % 4 > 0)
    rows = [row for batch in step6_instances._evenly(iter(parts), 4) for row in batch["ids"].to_pylist()]
    assert rows == [[number] for number in range(sum(sizes))]


def test_shards_are_stored_for_reading_single_rows(built):
    for length in (64, 128):
        for path in (built.folder / "instances" / str(length)).glob("*.arrow"):
            rows, is_compressed, batch_rows = read_shard(path)
            assert not is_compressed
            assert batch_rows == min(len(rows), 32_768 // length)
            lists = ("input_ids", "masked_lm_positions")
            assert np.load(lengths_path(path)).tolist() == [[len(row[name]) for name in lists] for row in rows]


def test_manifest_tells_what_was_built(built, make_config):
    manifest = read_manifest(built.folder / "instances" / "128")
    assert manifest.config == json.loads(json.dumps(to_dict(make_config())))
    assert set(manifest.versions) == {"megabert", "numpy", "pyarrow", "sentencex", "tokenizers"}
    assert {entry.pass_number for entry in manifest.of_split("train")} == {0, 1}
    assert {entry.pass_number for entry in manifest.of_split("validation")} == {0}
    assert manifest.metadata.max_predictions_per_seq == 20
    counts = manifest.statistics["instances"]["train"]
    assert counts["rows"] == manifest.totals()["train"]["rows"]
    masked = counts["masked_tokens"]
    assert abs(counts["shown_as_mask"] / masked - 0.8) < 3 * (0.8 * 0.2 / masked) ** 0.5
    assert abs(counts["shown_as_original"] / masked - 0.1) < 3 * (0.1 * 0.9 / masked) ** 0.5


def test_sources_of_one_name_are_counted_together(build, texts, tmp_path):
    paths = [write_jsonl(tmp_path / f"{i}.jsonl", texts[i::3]) for i in range(3)]
    sources = tuple(SourceConfig(input=str(path), name=name) for path, name in zip(paths, "aab", strict=True))
    built = build(sources=sources, lengths=(64,), dupe_factor=1)
    corpus = built.manifests[64].statistics["corpus"]
    assert corpus["documents_by_source"] == {"a": len(texts[::3]) + len(texts[1::3]), "b": len(texts[2::3])}


def test_second_build_of_a_process_in_one_place_has_its_own_vocabulary(texts, tmp_path, small_build, megabert_data):
    for size in ("200", "300"):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        small_build("--vocab-size", size, texts=texts[:12])
    assert read_manifest(tmp_path / "out" / "instances" / "32").metadata.vocab_size == 300
    megabert_data("verify", tmp_path / "out", "--workers", "1")


def test_no_more_than_the_whole_text_is_in_a_pass(build):
    """Random Bs of this seed are lengthened by tokens that pairs of other buckets have: 100.87% were counted."""
    texts = [f"{SENTENCES} It is number {i}." for i in range(60)]
    own = {"pieces": "byte_bpe", "vocab_size": 400, "lengths": (32,), "buckets": 8, "seed": 2, "dupe_factor": 1}
    text = build(texts=texts, validation_share=0.0, **own).manifests[32].statistics["text"]["train"]
    assert text["used"] == text["tokens"]


@pytest.fixture
def shard(built):
    return built.folder / "instances" / "64" / built.manifests[64].shards[0].file


def test_load_dataset_gives_the_instances(shard, tmp_path, monkeypatch):
    pytest.importorskip("datasets", reason="the library datasets is not installed: pip install datasets")
    monkeypatch.setitem(os.environ, "HF_HUB_OFFLINE", "1")
    from datasets import load_dataset

    loaded = load_dataset("arrow", data_files=str(shard), split="train", cache_dir=str(tmp_path))
    with pa.ipc.open_file(shard) as reader:
        rows = reader.read_all().slice(0, 50).to_pylist()
    assert loaded.select(range(50)).to_list() == rows
    assert loaded.features["input_ids"].feature.dtype == "uint16"


def test_instances_decode_to_running_text(build):
    settings = {"objective": "none", "masking": "dynamic", "mask_unit": "whole_word", "dupe_factor": 1}
    result = build(pieces="byte_bpe", vocab_size=600, lengths=(64,), **settings)
    folder = result.folder / "instances" / "64"
    assert verify(folder, Executor()).problems == []
    assert result.manifests[64].metadata.special_ids == {"pad": 1, "unk": 3, "cls": 0, "sep": 2, "mask": 4}
    assert json.loads((folder / "tokenizer/tokenizer.json").read_text())["model"]["type"] == "BPE"
    tokenizer = load_tokenizer(folder / "tokenizer")
    with pa.ipc.open_file(folder / result.manifests[64].shards[0].file) as reader:
        rows = reader.get_batch(0)["input_ids"].to_pylist()
    texts = [tokenizer.decode(ids[1:-1]) for ids in rows]
    assert all("<" not in text for text in texts)
    joined = [text for text in texts if ". " in text.strip()]
    assert joined, "no instance of two sentences"
    assert not any(".The" in text or ".A " in text for text in texts)
