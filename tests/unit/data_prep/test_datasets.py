"""A shard is read by the `datasets` library, and by what that library does with pyarrow."""

import os

import pyarrow as pa
import pytest


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
