"""A build with byte-level BPE: sound shards, and instances that decode to running text."""

import json

import pyarrow as pa

from data_prep.checks.verify import verify
from data_prep.execution.executors import Executor
from megabert.tokens.tokenization import load_tokenizer


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
