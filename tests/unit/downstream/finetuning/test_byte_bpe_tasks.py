"""RoBERTa's pieces: pairs with two separators, words with their space, answers without it."""

import random

import pytest
from transformers import AutoTokenizer
from unit.downstream.finetuning.conftest import WORDS
from unit.downstream.finetuning.test_span import gold_logits, question
from unit.tokens.tokenization.conftest import edit_json

from megabert.downstream.finetuning.setup import bind_kind
from megabert.downstream.finetuning.task_kinds.sequence import LabelledText
from megabert.downstream.finetuning.task_kinds.tagging import TaggedSentence
from megabert.downstream.finetuning.tasks import find_task
from megabert.settings.config.finetune import FinetuneConfig
from megabert.settings.config.model import ModelConfig
from megabert.tokens.tokenization import load_tokenizer, save_huggingface
from megabert.tokens.tokenization.training import train_byte_bpe


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    text = " ".join(random.Random(1).choices(WORDS, k=4000))
    folder = tmp_path_factory.mktemp("bpe")
    save_huggingface(train_byte_bpe([text], vocab_size=350), folder, model_max_length=64)
    edit_json(folder / "tokenizer_config.json", tokenizer_class="RobertaTokenizer")
    return folder


@pytest.fixture(params=[1, 2])
def make(folder, request):
    model = ModelConfig(family="roberta", type_vocab_size=request.param)  # two rows, of which one is used

    def make(name: str, labels=()):
        config = FinetuneConfig(model="m", data="d", doc_stride=7, max_seq_length=24)
        return bind_kind(find_task(name), config, model, load_tokenizer(folder), tuple(labels))

    return make


def test_pairs_are_those_of_transformers(make, folder):
    example = LabelledText(line=1, where="t:1", text="the cat sat", pair="a ship sailed", label="0")
    columns = make("rte", ("0", "1")).encode([example], is_training=True).columns
    expected = AutoTokenizer.from_pretrained(folder)("the cat sat", "a ship sailed")["input_ids"]
    assert columns.input_ids.tolist() == expected
    assert columns.segment_b_starts.tolist() == [len(expected)]


def test_tags_stand_on_words_as_in_running_text(make, folder):
    kind = make("tagging", ("O", "B-A"))
    example = TaggedSentence(line=1, where="t:1", tokens=("the", "cat", "sat"), tags=("O", "B-A", "O"))
    features = kind.encode([example], is_training=True)
    inside = features.columns.input_ids[1:-1].tolist()
    assert inside == load_tokenizer(folder).encode(" the cat sat").tolist()
    assert features.labels.tolist() == [0, 1, 0]


def test_answers_come_back_without_the_space_before_them(make):
    rng = random.Random(1)
    examples = []
    for index in range(20):
        words = rng.choices(WORDS, k=25)
        words[start] = f"x{start}" if (start := rng.randrange(25)) else "x0"
        examples.append(question(" ".join(words), words[start], str(index)))
    kind = make("squad")
    features = kind.encode(examples, is_training=True)
    predictions = kind.predict(gold_logits(features), examples, features)
    assert kind.score(predictions, examples)["exact"] == 1
