"""A shard is read by the `datasets` library, and by what that library does with pyarrow."""

import os

import pyarrow as pa
import pytest


@pytest.fixture
def shard(built):
    return built.folder / "instances" / "64" / built.manifests[64].shards[0].file


def test_shard_is_read_as_datasets_does(built, shard):
    """Its builder `arrow` tries a stream first, then a file, and takes every batch with the schema's metadata."""
    with open(shard, "rb") as stream:
        with pytest.raises(pa.ArrowInvalid):
            pa.ipc.open_stream(stream)
        reader = pa.ipc.open_file(stream)
        table = pa.Table.from_batches([reader.get_batch(index) for index in range(reader.num_record_batches)])
    entry = built.manifests[64].shards[0]
    assert table.num_rows == entry.rows
    assert len(table["input_ids"].combine_chunks().values) == entry.tokens


def test_load_dataset_gives_the_instances(shard, tmp_path, monkeypatch):
    pytest.importorskip("datasets", reason="the library datasets is not installed: pip install datasets")
    monkeypatch.setitem(os.environ, "HF_HUB_OFFLINE", "1")
    from datasets import load_dataset

    loaded = load_dataset("arrow", data_files=str(shard), split="train", cache_dir=str(tmp_path))
    with pa.ipc.open_file(shard) as reader:
        rows = reader.read_all().slice(0, 50).to_pylist()
    assert loaded.select(range(50)).to_list() == rows
    assert loaded.features["input_ids"].feature.dtype == "uint16"
