"""Labels for texts that nobody has labelled, against transformers' model of the same folder."""

import json

import numpy as np
import pytest
import torch
import transformers

from megabert.downstream.finetuning.classifier import Classifier
from megabert.downstream.finetuning.saved_model import KEY, read_saved_model
from megabert.foundation.errors import CheckpointError, ConfigError
from megabert.tokens.tokenization.huggingface import copy_tokenizer

NAMES = {0: "sea", 1: "land", 2: "air"}
TEXTS = ["the ship sailed over the sea", "a cat sat", "who is in the mat ?"]


@pytest.fixture
def folder(model_dir, tokenizer_dir, tmp_path):
    theirs = transformers.BertForSequenceClassification.from_pretrained(
        model_dir, id2label=NAMES, label2id={name: index for index, name in NAMES.items()}
    )
    torch.nn.init.normal_(theirs.classifier.weight)
    theirs.save_pretrained(tmp_path / "model")
    copy_tokenizer(tokenizer_dir, tmp_path / "model")
    return tmp_path / "model"


def change(folder, name="config.json", **fields):
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@torch.no_grad()
@pytest.mark.parametrize("seconds", [None, ["it sailed", "the dog", "in the sea"]])
def test_probabilities_are_those_of_transformers(folder, tokenizer_dir, seconds):
    model = transformers.BertForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = zip(TEXTS, seconds or [None] * 3, strict=True)
    theirs = [model(**tokenizer(*pair, return_tensors="pt")).logits[0].softmax(-1).tolist() for pair in texts]
    judgements = Classifier(read_saved_model(folder)).predict(TEXTS, seconds)
    for judgement, expected in zip(judgements, theirs, strict=True):
        assert list(judgement.probabilities) == list(NAMES.values())
        assert list(judgement.probabilities.values()) == pytest.approx(expected, abs=1e-5)
        assert judgement.label == max(judgement.probabilities, key=judgement.probabilities.get)


@torch.no_grad()
@pytest.mark.parametrize("stated", [6, 200, int(1e30)])
def test_long_texts_are_cut_as_transformers_cuts_them(stated, model_dir, tokenizer_dir, tmp_path):
    labels = {"id2label": NAMES, "label2id": {name: index for index, name in NAMES.items()}}
    config = transformers.AutoConfig.from_pretrained(
        model_dir, max_position_embeddings=256, initializer_range=0.5, **labels
    )
    model = transformers.BertForSequenceClassification(config).eval()
    model.save_pretrained(tmp_path)
    copy_tokenizer(tokenizer_dir, tmp_path)
    change(tmp_path, "tokenizer_config.json", model_max_length=stated)
    tokenizer, text = transformers.AutoTokenizer.from_pretrained(tmp_path), "the ship sailed over " * 99
    ids = tokenizer(text, truncation=True, max_length=min(stated, 256), return_tensors="pt")
    theirs = model(**ids).logits[0].softmax(-1).tolist()
    judgement = Classifier(read_saved_model(tmp_path)).predict([text])[0]
    assert list(judgement.probabilities.values()) == pytest.approx(theirs, abs=1e-5)


def test_labels_of_ours_may_look_like_names_that_transformers_makes_up(folder):
    change(folder, id2label={"0": "LABEL_1", "1": "LABEL_0", "2": "LABEL_2"}, **{KEY: {"task": "classification"}})
    assert Classifier(read_saved_model(folder)).labels == ("LABEL_1", "LABEL_0", "LABEL_2")


def test_labels_that_are_no_text_are_written_as_in_tables(folder):
    change(folder, id2label={"0": False, "1": True, "2": 2.0}, label2id={"false": 0, "true": 1, "2": 2})
    assert Classifier(read_saved_model(folder)).labels == ("false", "true", "2")


@pytest.mark.parametrize("seconds", [None, TEXTS])
def test_arrays_of_texts_are_judged_as_lists_are(folder, seconds):
    classifier = Classifier(read_saved_model(folder))
    arrays = np.array(TEXTS), None if seconds is None else np.array(seconds)
    assert classifier.predict(*arrays) == classifier.predict(TEXTS, seconds)
    assert classifier.predict(np.array([], dtype=str)) == classifier.predict([]) == []


@pytest.mark.parametrize(("pair", "seconds"), [("pair", None), (None, TEXTS)])
def test_pairs_are_what_the_model_was_fine_tuned_on(folder, pair, seconds):
    change(folder, **{KEY: {"task": "classification", "pair_column": pair}})
    with pytest.raises(ConfigError, match="was fine-tuned on pairs. Give" if pair else "on single texts. Leave out"):
        Classifier(read_saved_model(folder)).predict(TEXTS, seconds)


def test_fewer_second_texts_are_refused(folder):
    with pytest.raises(ConfigError, match="3 texts and 1 second texts"):
        Classifier(read_saved_model(folder)).predict(TEXTS, ["one"])


def test_one_text_in_place_of_a_list_is_refused(folder):
    with pytest.raises(ConfigError, match="'the ship' is one text"):
        Classifier(read_saved_model(folder)).predict("the ship")
    with pytest.raises(ConfigError, match="'a sea' is one text"):
        Classifier(read_saved_model(folder)).predict(["the ship"], "a sea")


def test_labels_that_are_not_the_heads_are_refused(folder):
    change(folder, id2label={"0": "sea", "1": "land"}, label2id={"sea": 0, "land": 1})
    with pytest.raises(CheckpointError, match="its head has 3 outputs, the task classification needs 2"):
        Classifier(read_saved_model(folder))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"problem_type": "multi_label_classification"}, "problem_type='multi_label_classification'; the task"),
        ({"problem_type": "regression"}, "problem_type='regression'; the task"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}, "activation is Sigmoid"),
        ({"sbert_ce_default_activation_function": "torch.nn.Sigmoid"}, "activation is Sigmoid"),
        ({"function_to_apply": "sigmoid"}, "function_to_apply='sigmoid'"),
        ({"label2id": {"sea": 1, "land": 0, "air": 2}}, "label2id has 'sea' as 1"),
        ({"id2label": {"1": "sea", "2": "land", "3": "air"}}, r"id2label names \[1, 2, 3\]"),
        ({"id2label": {str(index): f"LABEL_{index}" for index in NAMES}}, "does not name the labels of its head"),
        ({KEY: {"task": "squad"}}, "fine-tuned for the task squad, which gives no label to a plain text"),
        ({KEY: {"task": "classification", "max_seq_lenght": 8}}, "max_seq_lenght: no setting; did you mean max_seq"),
    ],
)
def test_a_head_whose_outputs_mean_something_else_is_refused(folder, fields, words):
    change(folder, **fields)
    with pytest.raises(ConfigError, match=words):
        Classifier(read_saved_model(folder))


@pytest.mark.parametrize("activation", ["torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Softmax"])
def test_a_cross_encoder_over_labels_is_read(folder, activation):
    own = {"activation_fn": activation, "version": "4.0.1"}
    change(folder, sentence_transformers=own, sbert_ce_default_activation_function=activation)
    assert Classifier(read_saved_model(folder)).labels == tuple(NAMES.values())


def test_a_head_of_one_output_is_no_classifier(model_dir, tokenizer_dir, tmp_path):
    theirs = transformers.BertForSequenceClassification.from_pretrained(model_dir, id2label={0: "relevant"})
    theirs.save_pretrained(tmp_path)
    copy_tokenizer(tokenizer_dir, tmp_path)
    with pytest.raises(ConfigError, match="a head of one output, which is a score; the task classification"):
        Classifier(read_saved_model(tmp_path))
