"""Folders that are written: what transformers makes of them, what reads back, and which folders are replaced."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
import transformers
import yaml
from safetensors.torch import load_file
from support.exported_models import model_of, write

from megabert.downstream.export import model_card as cards
from megabert.downstream.export.huggingface import read_huggingface
from megabert.downstream.export.sources import open_source
from megabert.downstream.publish.forms import Forms
from megabert.downstream.publish.run_folder import export_again
from megabert.foundation.errors import ConfigError, DataError
from megabert.library import load_model
from megabert.models.bert import BertForPreTraining
from megabert.models.build import build_model, initialize
from megabert.models.convert import load_parameters
from megabert.settings.config.model import ModelConfig
from megabert.tokens.tokenization import load_tokenizer


@pytest.mark.parametrize(("objective", "architecture"), [("sop", "BertForPreTraining"), ("none", "BertForMaskedLM")])
def test_export_reads_back_exactly(objective, architecture, config, tokenizer_dir, tmp_path):
    state = write(tmp_path / "out", model_of(config, objective), tokenizer_dir)
    content = read_huggingface(tmp_path / "out", objective=objective)
    assert content.config == config
    assert content.missing_head_names == []
    assert content.state.keys() == state.keys()
    assert all(torch.equal(content.state[name], value) for name, value in state.items())
    assert json.loads((tmp_path / "out/config.json").read_text())["architectures"] == [architecture]
    assert load_tokenizer(tmp_path / "out").sha256 == load_tokenizer(tokenizer_dir).sha256


def test_weights_are_cut_to_the_vocabulary_and_tied_ones_stored_once(config, tokenizer_dir, tmp_path):
    write(tmp_path / "out", model_of(config), tokenizer_dir)
    weights = load_file(tmp_path / "out/model.safetensors")
    assert weights["bert.embeddings.word_embeddings.weight"].shape == (config.vocab_size, 32)
    assert weights["cls.predictions.bias"].shape == (config.vocab_size,)
    assert not any(name.startswith("cls.predictions.decoder") for name in weights)
    modes = {(tmp_path / "out" / name).stat().st_mode for name in ("model.safetensors", "config.json")}
    assert len(modes) == 1, "a reader of the one may read the other"


def test_fill_mask_pipeline_runs_on_the_export(config, tokenizer_dir, tmp_path):
    write(tmp_path / "out", model_of(config), tokenizer_dir)
    pipeline = transformers.pipeline("fill-mask", model=str(tmp_path / "out"), tokenizer=str(tmp_path / "out"))
    assert len(pipeline("the cat sat on the [MASK] .")) == 5


@pytest.mark.parametrize("stated", [512, 10**30, None, 32, 16])
def test_a_tokenizer_cuts_texts_at_a_length_that_the_model_has(stated, config, tokenizer_dir, tmp_path):
    shutil.copytree(tokenizer_dir, tmp_path / "tokenizer")
    path = tmp_path / "tokenizer" / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": stated}))
    write(tmp_path / "out", model_of(config), tmp_path / "tokenizer")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.model_max_length == (16 if stated == 16 else 32)


def test_a_masked_lm_whose_decoder_transformers_lacks_is_offered_without_its_guesses(config, tokenizer_dir, tmp_path):
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    sizes |= {"vocab_size": config.vocab_size, "max_position_embeddings": 32}
    deberta = ModelConfig(family="deberta-v3", generator_size=None, generator_layers=None, **sizes)
    write(tmp_path / "out", model_of(deberta, "none"), tokenizer_dir)
    card = (tmp_path / "out/README.md").read_text()
    assert "pipeline_tag: feature-extraction" in card
    assert "fill-mask" not in card


def test_card_has_a_header_and_all_that_was_measured(config, tokenizer_dir, tmp_path):
    write(tmp_path / "out", model_of(config), tokenizer_dir)
    _, header, body = (tmp_path / "out/README.md").read_text().split("---\n", 2)
    header = yaml.safe_load(header)
    assert header["library_name"] == "transformers"
    assert header["language"] == ["en"]
    assert header["license"] == "apache-2.0"
    metrics = header["model-index"][0]["results"][0]["metrics"]
    assert {"type": "eval/mlm_loss", "value": 4.25} in metrics
    for words in ("# Little BERT", "A test.", "three sentences", "| optimizer | lamb |", "| step | 10 |", "4.2500"):
        assert words in body


def test_card_names_its_base_and_a_fine_tuned_one_takes_its_facts(config, tokenizer_dir, tmp_path):
    card = cards.ModelCard(name="Derived", base_model="owner/base", languages=("en", "ko"), license="mit")
    write(tmp_path / "out", model_of(config), tokenizer_dir, card=card)
    header = yaml.safe_load((tmp_path / "out/README.md").read_text().split("---\n", 2)[1])
    assert (header["base_model"], header["license"], header["language"]) == ("owner/base", "mit", ["en", "ko"])
    assert cards.facts_of(tmp_path / "out") == {"languages": ("en", "ko"), "license": "mit"}
    (tmp_path / "out/README.md").write_text("---\nlicense: [\n---\n")
    assert cards.facts_of(tmp_path / "out") == cards.facts_of(tmp_path) == {}


@pytest.mark.parametrize("name", ["/home/me/base", "../base", "runs/masked_lm", "models/base", "english", "here/base"])
def test_card_names_no_folder_as_its_base(name, config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    text = cards.render_card(
        cards.ModelCard(name="Derived", base_model=name), config, architecture="BertModel", parameters=1
    )
    assert "base_model" not in text


@pytest.mark.parametrize(
    ("architecture", "pipeline"),
    [
        ("BertForPreTraining", "fill-mask"),
        ("RobertaForMaskedLM", "fill-mask"),
        ("BertForSequenceClassification", "text-classification"),
        ("DebertaV2ForTokenClassification", "token-classification"),
        ("ElectraForQuestionAnswering", "question-answering"),
        ("BertForMultipleChoice", "multiple-choice"),
        ("BertModel", "feature-extraction"),
    ],
)
def test_card_has_the_task_of_its_class(architecture, pipeline, config):
    card = cards.ModelCard(name="Bare", pipeline=cards.pipeline_of(architecture))
    text = cards.render_card(card, config, architecture=architecture, parameters=1)
    header = yaml.safe_load(text.split("---\n", 2)[1])
    assert header["pipeline_tag"] == pipeline
    assert not header.keys() & {"model-index", "license"}, "without facts it is valid as well"
    assert (", pipeline\n" in text) == ("pipeline(" in text) == (pipeline == "fill-mask")
    assert "tokenizer = AutoTokenizer.from_pretrained(folder)" in text


@pytest.mark.parametrize("facts", [(["English"], None), ([], "Apache 2.0"), ([], None, "runs/base")])
def test_facts_that_hubs_do_not_take_are_refused(facts):
    with pytest.raises(ConfigError, match=r"--[lb]"):
        cards.check_facts(*facts)


@pytest.mark.parametrize(
    ("architecture", "class_name", "last"),
    [
        ("BertForPreTraining", "AutoModelForMaskedLM", "logits = {}.logits"),
        ("DebertaV2ForMaskedLM", "AutoModelForMaskedLM", "logits = {}.logits"),
        ("DebertaV2Model", "DebertaV2Model", "hidden = {}[0]"),
        ("ElectraForPreTraining", "ElectraForPreTraining", "is_replaced = {}.logits > 0"),
    ],
)
def test_card_of_symbols_loads_the_class_of_its_folder(config, architecture, class_name, last):
    card = cards.ModelCard(name="Symbols", symbols=("They are written so.", "A C [MASK]"))
    text = cards.render_card(card, config, architecture=architecture, parameters=1)
    lines = text.split("```")[1].splitlines()[1:]
    assert lines[:2] == ["# They are written so.", f"from transformers import AutoTokenizer, {class_name}"]
    assert f"model = {class_name}.from_pretrained(folder)" in lines
    assert lines[-1] == last.format("""model(**tokenizer('A C [MASK]', return_tensors="pt"))""")


def test_card_of_a_generator_promises_no_vectors(config, tokenizer_dir, tmp_path):
    model = build_model(replace(config, family="electra", generator_size=0.5))
    initialize(model, 0)
    card = cards.ModelCard(name="Vectors", gives_vectors=True, usage="vectors = 1")
    write(tmp_path / "out", model, tokenizer_dir, card=card)
    own, generators = ((tmp_path / "out" / name).read_text() for name in ("README.md", "generator/README.md"))
    assert "sentence-transformers" in own
    assert "vectors = 1" in own
    assert "sentence-transformers" not in generators
    assert "ElectraForMaskedLM.from_pretrained(folder)" in generators


def test_an_earlier_export_is_replaced_and_nothing_is_left_beside(config, tokenizer_dir, tmp_path):
    write(tmp_path / "out", model_of(config), tokenizer_dir)
    state = write(tmp_path / "out", model_of(config, seed=1), tokenizer_dir)
    loaded = read_huggingface(tmp_path / "out").state
    assert torch.equal(loaded["bert.pooler.dense.weight"], state["bert.pooler.dense.weight"])
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty", model_of(config), tokenizer_dir)
    assert (tmp_path / "empty/config.json").is_file()


@pytest.mark.parametrize("name", ["notes.txt", "config.json"])
def test_a_foreign_folder_is_left_alone(name, config, tokenizer_dir, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("{}")
    with pytest.raises(ConfigError, match="left alone"):
        write(tmp_path / "out", model_of(config), tokenizer_dir)
    assert [path.name for path in tmp_path.rglob("*")] == ["out", name]


def test_a_failure_leaves_nothing_half_written(config, tokenizer_dir, tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise OSError(28, "No space left on device")

    write(tmp_path / "out", model_of(config), tokenizer_dir)
    before = (tmp_path / "out/model.safetensors").read_bytes()
    monkeypatch.setattr("megabert.downstream.export.huggingface.save_file", fail)
    with pytest.raises(DataError, match="no space left"):
        write(tmp_path / "out", model_of(config, seed=1), tokenizer_dir)
    assert (tmp_path / "out/model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("rows", "says"), [(68, ": the pieces from 68 on have none. Give the tok"), (69 + 128, "; up to 127 spare ones")]
)
def test_a_tokenizer_of_another_size_is_refused(rows, says, config, tokenizer_dir, tmp_path):
    with pytest.raises(DataError, match=rf"tokenizer has 69 pieces, the model {rows} embeddings{says}"):
        write(tmp_path / "out", model_of(replace(config, vocab_size=rows)), tokenizer_dir)
    assert list(tmp_path.iterdir()) == []


def test_the_remedy_for_too_many_embeddings_works(config, tokenizer_dir, tmp_path):
    write(tmp_path / "out", model_of(config), tokenizer_dir)
    model = transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "out")
    model.resize_token_embeddings(400)
    model.save_pretrained(tmp_path / "out")
    with pytest.raises(DataError, match=r"resize_token_embeddings\(69\) and save_pretrained"):
        open_source(str(tmp_path / "out")).load_tokenizer()
    model.resize_token_embeddings(69)
    model.save_pretrained(tmp_path / "out")
    assert open_source(str(tmp_path / "out")).load_tokenizer().vocab_size == 69


@pytest.mark.parametrize("family", ["bert", "roberta", "electra"])
def test_embeddings_padded_to_a_multiple_of_8_are_read_and_kept(family, config, tokenizer_dir, tmp_path):
    """transformers has 72 rows for 69 pieces, as NVIDIA's models have 30,528 for 30,522."""
    own = replace(config, family=family, **({"type_vocab_size": 1} if family == "roberta" else {}))
    write(tmp_path / "out", model_of(own), tokenizer_dir)
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    theirs.resize_token_embeddings(pad_to_multiple_of=8)
    theirs.save_pretrained(tmp_path / "out")
    model = load_model(tmp_path / "out", device="cpu")
    ids = torch.tensor(model.tokenize("the cat sat").ids)[None]
    with torch.no_grad():
        expected = theirs.base_model(ids).last_hidden_state[0].mean(0)
    assert torch.allclose(torch.tensor(model.embed(["the cat sat"])[0]), expected, atol=1e-5)
    if family != "electra":
        (guesses,) = model.fill_mask("the [MASK] sat", top_k=69)
        assert len(guesses) <= 69  # no row without a piece is a guess
    export_again(tmp_path / "out", tmp_path / "again", Forms(vectors="mean"))
    name = f"{family}.embeddings.word_embeddings.weight"
    rows, kept = (load_file(tmp_path / folder / "model.safetensors")[name] for folder in ("out", "again"))
    assert rows.shape == (72, 32)
    assert torch.equal(rows, kept)


@pytest.mark.parametrize(("pieces", "is_fit"), [(70, True), (1093, True), (1094, False), (68, False)])
def test_a_deberta_of_the_second_version_may_have_spare_rows(pieces, is_fit, tokenizer_dir, tmp_path):
    config = ModelConfig(family="deberta-v2", vocab_size=pieces, preset="tiny")
    if is_fit:
        write(tmp_path / "out", model_of(config, "none"), tokenizer_dir)
        assert read_huggingface(tmp_path / "out").config.vocab_size == pieces
    else:
        with pytest.raises(DataError, match="tokenizer has 69 pieces"):
            write(tmp_path / "out", model_of(config, "none"), tokenizer_dir)


def test_minilm_starts_a_run_with_new_heads_and_exports(minilm_folder, tmp_path):
    content = read_huggingface(minilm_folder)
    assert (content.config.vocab_size, content.config.hidden_size, content.config.num_hidden_layers) == (30_522, 384, 6)
    assert all(name.startswith("cls.") for name in content.missing_head_names)
    model = BertForPreTraining(content.config)
    initialize(model, 0)
    load_parameters(model, content.state, may_lack=content.missing_head_names)
    tokenizer_dir = tmp_path / "tokenizer"
    tokenizer_dir.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        shutil.copyfile(minilm_folder / name, tokenizer_dir / name)
    write(tmp_path / "out", model, tokenizer_dir)
    theirs = transformers.BertModel.from_pretrained(tmp_path / "out").eval()
    original = transformers.BertModel.from_pretrained(minilm_folder).eval()
    ids = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")("The ship sails.", return_tensors="pt")
    with torch.no_grad():
        assert torch.equal(theirs(**ids).pooler_output, original(**ids).pooler_output)
