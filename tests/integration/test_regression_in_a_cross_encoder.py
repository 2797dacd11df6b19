"""A fine-tuned regression gives its own scores in sentence-transformers, without a sigmoid."""

import json

import pytest
import transformers
from forked.client import run_command
from support.exported_models import write_english

PAIRS = [("the ship sailed over the sea", "a ship"), ("she had a sister", "the whale rose")]


def test_a_score_is_the_model_s_output(tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers", reason="pip install 'megabert[vectors]'")
    model = write_english(tmp_path, family="bert")
    rows = [{"text": text, "pair": pair, "label": 3.0 + index} for index, (text, pair) in enumerate(PAIRS * 8)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["finetune", "regression", "--model", str(model), "--data", str(tmp_path / "train.jsonl"), "--epochs", "1"]
    words += ["--text-column", "text", "--pair-column", "pair", "--output-dir", str(tmp_path / "tuned")]
    assert run_command("megabert", words, tmp_path / "out") == 0, (tmp_path / "out").read_text()
    folder = next((tmp_path / "tuned").glob("seed_*/model"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    logits = model(**tokenizer(*map(list, zip(*PAIRS, strict=True)), padding=True, return_tensors="pt")).logits
    scores = sentence_transformers.CrossEncoder(str(folder), device="cpu").predict(PAIRS)
    assert scores.tolist() == pytest.approx(logits[:, 0].tolist(), abs=1e-5)
