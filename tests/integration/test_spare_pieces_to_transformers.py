"""Spare pieces from the build to a fine-tuned model."""

import json

import pyarrow as pa
import pytest
from forked.client import run_command
from support.bundled_corpus import build_shards
from support.runs import finished
from support.soak import in_soak

from megabert.downstream.publish.run_folder import export_run

NAMES = [f"[unused{number}]" for number in range(8)]


@pytest.mark.parametrize("pieces", ["byte_bpe", *in_soak("wordpiece", "unigram")])
def test_spare_pieces_reach_a_fine_tuned_model(pieces, tmp_path):
    import transformers

    corpus = tmp_path / "in.jsonl"
    text = "The whale [unused3] swims in the sea. A ship [unused0] sails over the waves, and nobody sees the land. "
    rows = [{"id": str(number), "text": f"Number {number}. {text * 40}"} for number in range(12)]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--pieces", pieces, "--vocab-size", "400", "--spare-pieces", "8", "--dupe-factor", "1"]
    data = build_shards(corpus, tmp_path / "data", *flags, "--masking", "dynamic")
    for shard in (data / "instances" / "64").glob("*.arrow"):
        with pa.ipc.open_file(shard) as reader:
            ids = reader.read_all()["input_ids"].combine_chunks().values.to_pylist()
        assert not set(range(5, 13)) & set(ids), "a text that spells a spare piece was not cut like any other"
    run = finished(tmp_path / "run", data, flags={"phases.0.steps": 1, "phases.1.steps": 1})
    folder = tmp_path / "model"
    export_run(run.run_dir, folder)

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.convert_tokens_to_ids(NAMES) == list(range(5, 13))
    assert tokenizer("[unused3]", add_special_tokens=False)["input_ids"] == [8]
    model = transformers.AutoModel.from_pretrained(folder)
    assert model.get_input_embeddings().weight[8].abs().sum() > 0

    # The label is which of two spare pieces a text has, so a model that did not see them could not tell.
    examples = [{"text": f"a ship {NAMES[i % 2]} sails", "label": "ab"[i % 2]} for i in range(16)]
    for name in ("train", "dev"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(example) + "\n" for example in examples))
    words = ["finetune", "classification", "--model", str(folder), "--data", str(tmp_path / "train.jsonl")]
    words += ["--eval-data", str(tmp_path / "dev.jsonl"), "--output-dir", str(tmp_path / "tuned"), "--epochs", "2"]
    output = tmp_path / "tuned.out"
    assert run_command("megabert", words, output) == 0, output.read_text()
    tuned = transformers.AutoTokenizer.from_pretrained(next((tmp_path / "tuned").glob("seed_*/model")))
    assert tuned("a ship [unused1] sails")["input_ids"].count(6) == 1


def test_more_spare_pieces_than_fit_are_refused(corpus, tmp_path, megabert_data):
    words = ["vocab", "--input", str(corpus), "--output", str(tmp_path / "out"), "--vocab-size", "500"]
    message = megabert_data(*words, "--spare-pieces", "450", code=2).err
    assert "vocab_size=500: leaves 50 pieces for the text beside spare_pieces=450" in message
    assert "raise vocab_size to 514 or more" in message
    assert "needs 261 or more" in megabert_data(*words, "--spare-pieces", "250", "--pieces", "byte_bpe", code=2).err
    said = megabert_data(*words, "--pieces", "byte_bpe", "--vocab-size", "100", code=2).err
    assert "vocab_size=100: leaves 100 pieces for the text, and a byte_bpe vocabulary" in said
    assert not (tmp_path / "out").exists()
