"""Folders of others that are read: which models and files are taken, and what is said of those that are not."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.exported_models import model_of, write

from megabert.downstream.export.config_json import read_config_json
from megabert.downstream.export.huggingface import read_huggingface
from megabert.downstream.export.sources import open_source
from megabert.foundation.errors import CheckpointError, ConfigError, DataError
from megabert.models.build import build_model, initialize
from megabert.settings.config.model import ModelConfig


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.fixture
def folder_of(tokenizer_dir, tmp_path) -> Callable[[str], Path]:
    """Exports a small model of a family."""

    def export(family: str) -> Path:
        config = ModelConfig(family=family, vocab_size=69, preset="tiny")
        write(tmp_path / family, model_of(config, "none"), tokenizer_dir)
        return tmp_path / family

    return export


@pytest.fixture
def deberta_folder(folder_of) -> Path:
    return folder_of("deberta-v2")


OTHERS = {
    "bert": [
        ({"model_type": "distilbert"}, r"model_type='distilbert'; supported are bert, roberta, albert"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"hidden_act": "relu"}, r"hidden_act='relu'; supported are gelu"),
        ({"num_attention_heads": 5}, "does not divide"),
    ],
    "deberta-v2": [
        ({"model_type": "deberta", "max_relative_positions": 256}, "position_buckets is no field of this family"),
        ({"relative_attention": False}, r"relative_attention=False; only True is supported. Give another deberta-v2"),
        ({"pos_att_type": "c2p|p2p"}, "should be 'c2p' or 'p2c'"),
        ({"pos_att_type": None}, "pos_att_type"),
        ({"pooler_hidden_act": "tanh"}, "pooler_hidden_act='tanh'"),
        ({"pooler_dropout": 0.1}, r"pooler_dropout=0\.1"),
        ({"conv_kernel_size": 3, "conv_groups": 2}, "conv_groups=2; only 1 is supported"),
        ({"norm_rel_ebd": "batch_norm"}, "norm_rel_ebd"),
        ({"position_buckets": "many"}, "position_buckets"),
        ({"max_relative_positions": -2}, "max_relative_positions"),
    ],
    "modernbert": [
        ({"local_attention": 63}, "local_attention=63 cannot be halved"),
        ({"rope_parameters": {"sliding_attention": {"rope_theta": 0}}}, "local_rope_theta=0 is no base"),
        ({"rope_parameters": {"full_attention": {"rope_theta": "far"}}}, "global_rope_theta"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "only rope_type='default' is supported"),
        ({"rope_parameters": ["full_attention"]}, "rope_parameters"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "only every n-th layer may be full_attention"),
        ({"norm_bias": 0}, "norm_bias=0; only False is supported"),
        ({"layer_types": ["full_attention"]}, "layer_types names 1 layers, num_hidden_layers=2"),
        ({"layer_types": []}, "layer_types names 0 layers"),
        ({"layer_types": False}, "layer_types"),
        ({"rope_parameters": False}, "rope_parameters"),
        ({"rope_parameters": {"rope_theta": 5e5}}, "rope_parameters.rope_theta"),
        ({"rope_parameters": {"global": {"rope_theta": 5e5}}}, "rope_parameters.global: only full_attention and"),
        ({"rope_parameters": {"full_attention": {"factor": 2}}}, "rope_parameters.full_attention.factor=2"),
        ({"rope_parameters": {"full_attention": {"partial_rotary_factor": 0.5}}}, "partial_rotary_factor=0.5"),
        ({"rope_theta": 5e5}, "rope_theta is no field of this family"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5; only 1 is supported"),
        ({"head_dim": 32}, "head_dim=32; only 64 is supported"),
        ({"sliding_window": 63}, "sliding_window=63; only 64 is supported"),
        ({"global_rope_theta": None}, "global_rope_theta=None is no value"),
        ({"local_atention": 32}, "local_atention is no field of this family .did you mean local_attention"),
    ],
}
"""Fields of config.json that a family of ours does not have, and what the message says."""


@pytest.mark.parametrize(
    ("family", "changes", "message"), [(family, *row) for family, rows in OTHERS.items() for row in rows]
)
def test_other_models_are_refused(family, changes, message, folder_of):
    folder = folder_of(family)
    edit_config(folder, **changes)
    with pytest.raises(ConfigError, match=message):
        read_huggingface(folder)


@pytest.fixture
def electra(tokenizer_dir, tmp_path) -> tuple[ModelConfig, Path]:
    """An ELECTRA of the preset small with one layer: a third of it has sizes that are rounded."""
    sizes = {"hidden_size": 512, "num_hidden_layers": 1, "num_attention_heads": 8, "intermediate_size": 2048}
    config = ModelConfig(family="electra", vocab_size=69, embedding_size=16, generator_size=1 / 3, **sizes)
    model = build_model(config)
    initialize(model, 0)
    write(tmp_path / "electra", model, tokenizer_dir)
    return config, tmp_path / "electra"


def test_a_generator_of_rounded_sizes_is_read_as_it_was_written(electra):
    config, folder = electra
    assert config.generator().intermediate_size != round(2048 * config.generator().hidden_size / 512)
    assert read_config_json(folder) == config
    open_source(str(folder)).build_model(fills_masks=True)


def test_the_share_of_a_folder_that_states_none_follows_from_the_widths(electra):
    config, folder = electra
    edit_config(folder, generator_size=0.25)  # transformers' default
    edit_config(folder / "generator", hidden_size=256, num_attention_heads=4, intermediate_size=1024)
    assert read_config_json(folder) == replace(config, generator_size=0.5)


def test_sizes_that_allow_no_usual_generator_are_an_encoders_unless_a_share_is_stated(tokenizer_dir, tmp_path):
    sizes = {"hidden_size": 60, "num_hidden_layers": 1, "num_attention_heads": 10, "intermediate_size": 64}
    config = ModelConfig(family="electra", vocab_size=69, embedding_size=16, **sizes)
    write(tmp_path / "model", model_of(config, "none"), tokenizer_dir)
    stated = json.loads((tmp_path / "model/config.json").read_text()) | {"architectures": ["ElectraModel"]}
    del stated["generator_size"]
    (tmp_path / "model/config.json").write_text(json.dumps(stated))
    assert read_config_json(tmp_path / "model") == config
    edit_config(tmp_path / "model", generator_size=0.25)
    with pytest.raises(ConfigError, match=r"generator_size=0\.25 gives 2 heads for a width of 15"):
        read_config_json(tmp_path / "model")


@pytest.mark.parametrize(
    ("name", "stated", "wanted"),
    [
        ("num_attention_heads", 1, 3),
        ("intermediate_size", 684, 683),
        ("hidden_act", "gelu_new", "gelu"),
        ("layer_norm_eps", 1e-5, 1e-12),
        ("max_position_embeddings", 256, 512),
    ],
)
def test_a_generator_that_does_not_follow_from_its_discriminator_is_refused(name, stated, wanted, electra):
    edit_config(electra[1] / "generator", **{name: stated})
    with pytest.raises(ConfigError, match=rf"generator/config\.json says {name}={stated}, .* this model has {wanted} "):
        read_config_json(electra[1])


def test_position_scores_are_read_as_the_authors_write_them(deberta_folder):
    before = read_huggingface(deberta_folder).config
    edit_config(deberta_folder, pos_att_type="p2c|c2p")
    assert read_huggingface(deberta_folder).config == before


def test_the_authors_masked_lm_head_is_read(deberta_folder):
    expected = read_huggingface(deberta_folder).state
    weights = load_file(deberta_folder / "model.safetensors")
    head = {"cls.predictions.transform.": "lm_predictions.lm_head.", "cls.predictions.": "lm_predictions.lm_head."}
    for ours, theirs in head.items():
        weights = {name.replace(ours, theirs): value for name, value in weights.items()}
    extra = {
        "mask_predictions.dense.weight": torch.zeros(2, 2),
        "deberta.embeddings.position_embeddings.weight": torch.zeros(1),
    }
    save_file({**weights, **extra}, deberta_folder / "model.safetensors")
    loaded = read_huggingface(deberta_folder)
    assert loaded.missing_head_names == []
    assert loaded.unused.keys() == extra.keys()
    assert all(torch.equal(loaded.state[name], value) for name, value in expected.items())


def test_positions_counted_from_another_piece_than_the_padding_are_refused(folder_of):
    """transformers' default is 1, which is [UNK] in a vocabulary of WordPiece."""
    folder = folder_of("roberta")
    assert open_source(str(folder)).load_tokenizer().special_ids.pad == 0
    edit_config(folder, pad_token_id=1)
    with pytest.raises(DataError, match=r"positions from pad_token_id=1, and the tokenizer's padding is 0\."):
        open_source(str(folder)).load_tokenizer()


def test_weights_of_another_family_are_refused(exported):
    edit_config(exported, model_type="roberta", pad_token_id=1)
    with pytest.raises(CheckpointError, match=r"says roberta, but the weights lack .* roberta\.e"):
        read_huggingface(exported)


def test_missing_and_damaged_files_are_named(exported, tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere/config\.json: cannot be read"):
        read_huggingface(tmp_path / "nowhere")
    weights = exported / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: cannot be read"):
        read_huggingface(exported)
    weights.unlink()
    with pytest.raises(CheckpointError, match="no weights"):
        read_huggingface(exported)
    (exported / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json: damaged"):
        read_huggingface(exported)


@pytest.mark.parametrize("name", ["bert_model.ckpt.index", "model.ckpt-1000.index", "tf_model.h5"])
def test_tensorflow_checkpoint_is_refused_with_the_remedy(exported, name):
    (exported / "model.safetensors").unlink()
    (exported / name).write_bytes(b"")
    (exported / "config.json").rename(exported / "bert_config.json")
    with pytest.raises(CheckpointError, match=rf"{name} is a TensorFlow checkpoint.*model\.safetensors"):
        read_huggingface(exported)


def test_sizes_are_read_without_weights(exported, config):
    (exported / "model.safetensors").unlink()
    assert read_config_json(exported) == config


def test_pytorch_files_are_read_without_running_their_code(exported):
    expected = read_huggingface(exported).state
    weights = load_file(exported / "model.safetensors")
    (exported / "model.safetensors").unlink()
    torch.save(weights, exported / "pytorch_model.bin")
    loaded = read_huggingface(exported).state
    assert all(torch.equal(loaded[name], value) for name, value in expected.items())
    torch.save({"a": Path("code")}, exported / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="holds more than weights"):
        read_huggingface(exported)


def test_sharded_weights_are_joined(exported):
    expected = read_huggingface(exported).state
    weights = load_file(exported / "model.safetensors")
    (exported / "model.safetensors").unlink()
    names = sorted(weights)
    for part, keys in (("one.safetensors", names[::2]), ("two.safetensors", names[1::2])):
        save_file({key: weights[key] for key in keys}, exported / part)
    index = {name: ("one.safetensors", "two.safetensors")[number % 2] for number, name in enumerate(names)}
    (exported / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    loaded = read_huggingface(exported).state
    assert all(torch.equal(loaded[name], value) for name, value in expected.items())
    for damaged in ("{", "[]", '{"weight_map": []}'):
        (exported / "model.safetensors.index.json").write_text(damaged)
        with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json: damaged"):
            read_huggingface(exported)


def test_an_encoder_with_holes_is_refused(exported):
    weights = load_file(exported / "model.safetensors")
    del weights["bert.encoder.layer.1.intermediate.dense.weight"]
    save_file(weights, exported / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lack 1 parameters.*layer\.1\.intermediate"):
        read_huggingface(exported)
