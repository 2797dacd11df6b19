"""What is read before a training: every family's weights, subsets, files."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.exported_models import write, write_huggingface
from support.parity_heads import ENCODERS
from support.tiny_models import SIZES

from megabert.downstream.export.model_card import ModelCard
from megabert.downstream.finetuning.finetune import build_task_model
from megabert.downstream.finetuning.model import TaskModel
from megabert.downstream.finetuning.rates import RATES
from megabert.downstream.finetuning.saved_model import read_saved_model
from megabert.downstream.finetuning.setup import find_labelled_files, prepare, split, subset
from megabert.downstream.finetuning.tasks import find_task
from megabert.foundation.errors import CheckpointError, DataError
from megabert.models.build import InitialWeights, build_model, initialize
from megabert.models.embedding_sharing import whole_tables
from megabert.settings.config.finetune import FinetuneConfig
from megabert.settings.config.model import ModelConfig


@pytest.fixture
def data(tmp_path):
    rows = "".join(f"the cat sat\t{i % 2}\n" for i in range(10))
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).write_text(f"text\tlabel\n{rows}")
    return tmp_path


@pytest.mark.parametrize("encoder", ENCODERS)
def test_weights_of_every_family_start_a_task(encoder, model_config, tokenizer_dir, data, tmp_path):
    family, sizes = encoder.partition(",")[0], {name: getattr(model_config, name) for name in SIZES}
    config = ModelConfig(**{"family": family, **sizes, **ENCODERS[encoder]})
    pretrained = build_model(config)
    initialize(pretrained, 3)
    folder = tmp_path / "model"
    state = write(folder, pretrained, tokenizer_dir)
    prepared = prepare(find_task("classification"), FinetuneConfig(model=str(folder), data=str(data)))
    assert prepared.model.family == family
    assert prepared.kind.has_segments is (config.type_vocab_size > 1)
    model, given, _ = build_task_model(prepared)
    new = {name for name, _ in model.named_parameters()} - given
    has_pooler = family in ("bert", "albert", "modernbert")  # the last one's is the dense layer of its masked LM
    expected = {"classifier.weight", "classifier.bias"}
    assert new == expected | (set() if has_pooler else {"bert.pooler.dense.weight", "bert.pooler.dense.bias"})
    name = "bert.embeddings.word_embeddings.weight"
    assert dict(model.named_parameters())[name][:100].equal(state[name][:100])


@pytest.mark.parametrize("family", ["electra", "deberta-v3"])
def test_discriminator_is_fine_tuned_without_a_shallower_generator(family, model_config, tokenizer_dir, data, tmp_path):
    sizes = {name: getattr(model_config, name) for name in SIZES}
    config = ModelConfig(**{"family": family, **sizes, "generator_size": 1.0, "generator_layers": 1})
    pretrained = build_model(config)
    initialize(pretrained, 3)
    state = whole_tables({name: value.detach() for name, value in pretrained.named_parameters()})
    folder = tmp_path / "model"
    write_huggingface(folder, state=state, config=config, tokenizer_dir=tokenizer_dir, card=ModelCard(name="x"))
    prepared = prepare(find_task("classification"), FinetuneConfig(model=str(folder), data=str(data)))
    model, *_ = build_task_model(prepared)
    assert not [name for name, _ in model.named_parameters() if name.startswith("generator.")]
    name = "bert.embeddings.word_embeddings.weight"
    assert dict(model.named_parameters())[name].equal(state[name])
    assert read_saved_model(folder).model.generator_size is None


@pytest.mark.parametrize(
    ("task", "file", "content", "words"),
    [
        ("classification", "a.tsv", "text\tlabel\n" + "a b\tyes\na c\tno\n" * 9, "names columns; text 'text', label"),
        ("cola", "a.tsv", "s\t1\t*\ta b\ns\t0\t*\ta c\n" * 9, "no line names columns; text 'sentence'"),
        ("tagging", "a.conll", "a O\nb B-X\n\n" * 9, "a line's first column is the word, its last the tag"),
    ],
)
def test_a_fine_tuning_says_how_it_read_its_file(task, file, content, words, model_config, tokenizer_dir, tmp_path):
    folder = tmp_path / "model"
    write(folder, build_model(model_config), tokenizer_dir)
    (tmp_path / file).write_text(content)
    prepared = prepare(find_task(task), FinetuneConfig(model=str(folder), data=str(tmp_path / file)))
    said = prepared.describe()
    assert words in said
    assert "read as UTF-8" in said
    assert "10% of them held out" in said
    first, second = said.splitlines()
    assert first.endswith(f"labels in order: {', '.join(prepared.kind.labels)}")
    assert second.startswith(f"learning rate {RATES[128][False]:g} (auto): pre-trained weights")


@pytest.mark.parametrize(
    ("settings", "length", "said"),
    [
        ({"max_seq_length": 8}, 8, ""),
        ({}, 16, "was trained on 16 tokens, as it states; 16 are taken"),
        ({"max_seq_length": 24}, 24, "was trained on 16 tokens, as it states; later positions begin untrained"),
        ({"random_weights": True}, 32, ""),
    ],
)
def test_length_is_one_of_the_training(settings, length, said, model_config, tokenizer_dir, data, tmp_path, caplog):
    folder, config = tmp_path / "model", replace(model_config, max_position_embeddings=32)
    write(folder, build_model(config), tokenizer_dir)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": 16}))
    with caplog.at_level("INFO"):
        prepared = prepare(find_task("classification"), FinetuneConfig(model=str(folder), data=str(data), **settings))
    assert prepared.kind.max_seq_length == length
    assert prepared.longest == max(16, length)
    assert said in caplog.text
    assert bool(said) == ("max_seq_length" in caplog.text)


def test_one_label_alone_is_refused_where_the_task_has_two(model_config, tokenizer_dir, data, tmp_path):
    folder = tmp_path / "model"
    write(folder, build_model(model_config), tokenizer_dir)
    (data / "train.tsv").write_text("sentence\tlabel\nthe cat\t0\nsat\t0\n")
    (data / "dev.tsv").write_text("sentence\tlabel\nthe cat\t1\n")
    with pytest.raises(DataError, match=r"train.tsv: every example has the label '0'"):
        prepare(find_task("sst2"), FinetuneConfig(model=str(folder), data=str(data)))


def test_weights_without_a_layer_are_refused(model_config):
    model = TaskModel(model_config, head=_head(), num_outputs=2)
    state = {n: p.detach() for n, p in model.named_parameters() if ".layer.1." not in n}
    kind = SimpleNamespace(head=_head(), num_outputs=2, config=FinetuneConfig(model="there", data="not used"))
    weights = InitialWeights(source="there", tokenizer_sha256="", read=lambda: state)
    with pytest.raises(CheckpointError, match="lack 12 parameters of the encoder"):
        build_task_model(SimpleNamespace(model=model_config, kind=kind, source=SimpleNamespace(weights=weights)))


def _head():
    from megabert.downstream.finetuning.task_kinds.sequence import Classification

    return Classification.head


def test_subsets_are_fixed_and_in_order():
    chosen = subset(list(range(100)), 10)
    assert chosen == sorted(chosen) == subset(list(range(100)), 10)
    assert len(set(chosen)) == 10
    assert subset([1, 2], 5) == [1, 2]


def test_split_holds_out_each_example_once(tmp_path):
    train, held_out = split(list(range(50)), 0.1, tmp_path)
    assert len(held_out) == 5
    assert sorted([*train, *held_out]) == list(range(50))
    with pytest.raises(DataError, match="too few to hold any out"):
        split([1], 0.1, tmp_path)


def test_mnli_is_scored_on_both_sets(tmp_path):
    for name in ("train.tsv", "dev_matched.tsv", "dev_mismatched.tsv"):
        (tmp_path / name).write_text("x\n")
    _, evaluation = find_labelled_files(find_task("mnli"), FinetuneConfig(model="m", data=str(tmp_path)))
    assert [path.stem for path in evaluation] == ["dev_matched", "dev_mismatched"]
