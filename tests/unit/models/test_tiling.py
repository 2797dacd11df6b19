"""Weights of a small model in a larger one, against ModernBERT's own loops and the rule for layers and heads."""

from dataclasses import replace

import pytest
import torch
from support.tiny_models import tiny_config

from megabert.foundation.errors import CheckpointError, ConfigError
from megabert.models.build import InitialWeights, build_model, initialize, load_initial_weights
from megabert.models.transfer import source_layer, tile, tile_weights
from megabert.settings.config.loading import load_run_config
from megabert.settings.config.model import ModelConfig

SMALL = tiny_config(num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=20)
LARGE = replace(
    SMALL,
    hidden_size=56,  # seven heads: three more, so the middle begins after the first
    num_hidden_layers=5,
    num_attention_heads=7,
    intermediate_size=104,
    max_position_embeddings=50,
)


def weights(config, seed=1):
    model = build_model(config)
    initialize(model, seed)
    for parameter in model.parameters():  # biases and gains, too, are to be told apart
        parameter.data += torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def modernbert_1d(old, size):
    """The loops of AnswerDotAI/ModernBERT, src/bert_layers/initialization.py: tile_weights_from_middle."""
    offset, result = (size - len(old)) // 2, torch.zeros(size)
    result[offset : offset + len(old)] = old
    for i in range(offset):
        result[offset - 1 - i] = old[len(old) - 1 - (i % len(old))]
    for i in range(offset + len(old), size):
        result[i] = old[(i - offset) % len(old)]
    return result


@pytest.mark.parametrize(("old", "new"), [(6, 6), (6, 9), (5, 12), (4, 17), (1, 3), (768, 1024)])
def test_tiles_are_those_of_modernbert(old, new):
    values = torch.arange(old) + 1.0
    assert torch.equal(tile(values, 0, new), modernbert_1d(values, new))


def test_layers_are_spread_as_in_gopher():
    assert [source_layer(i, 22, 28) for i in range(28)] == [round(i * 22 / 28) for i in range(28)]
    assert [source_layer(i, 12, 24) for i in range(24)][-4:] == [10, 10, 11, 11]
    assert [source_layer(i, 3, 3) for i in range(3)] == [0, 1, 2]


def test_every_parameter_is_tiled_and_heads_stay_whole():
    small = weights(SMALL)
    large = tile_weights(small, SMALL, LARGE)
    expected = {name: parameter.shape for name, parameter in build_model(LARGE).named_parameters()}
    assert {name: value.shape for name, value in large.items()} == expected
    columns = (torch.arange(56) - 12) % 32
    for layer, origin in enumerate([0, 1, 1, 2, 2]):
        old, new = (f"bert.encoder.layer.{number}.attention." for number in (origin, layer))
        qkv = small[f"{old}self.qkv.weight"].view(3, 4, 8, 32)
        wide = large[f"{new}self.qkv.weight"].view(3, 7, 8, 56)
        output, wide_output = small[f"{old}output.dense.weight"], large[f"{new}output.dense.weight"]
        for head in range(7):
            same = (head - 1) % 4
            assert torch.equal(wide[:, head], qkv[:, same][..., columns])
            read = output.view(32, 4, 8)[:, same]
            assert torch.equal(wide_output.view(56, 7, 8)[:, head], read[columns])
        bias = large[f"{new}self.qkv.bias"].view(3, 7, 8)
        assert torch.equal(bias[:, 1:5], small[f"{old}self.qkv.bias"].view(3, 4, 8))
    words = large["bert.embeddings.word_embeddings.weight"]
    assert torch.equal(words, small["bert.embeddings.word_embeddings.weight"][:, columns])
    positions = large["bert.embeddings.position_embeddings.weight"]
    assert torch.equal(positions[20:40], positions[:20])
    assert torch.equal(positions[:20, 12:44], small["bert.embeddings.position_embeddings.weight"])


@pytest.mark.parametrize(
    "fields",
    [
        {"family": "roberta"},
        {"family": "albert", "embedding_size": 16},
        {"family": "electra", "generator_size": 0.5},
        {"family": "deberta"},
        {"family": "deberta-v2", "conv_kernel_size": 3},
        {"family": "deberta-v3", "generator_size": 0.5, "generator_layers": 1},
        {"family": "modernbert", "global_attn_every_n_layers": 1},
    ],
)
def test_every_family_is_filled(fields):
    sizes = {"vocab_size": 70, "num_attention_heads": 4, "intermediate_size": 48, "max_position_embeddings": 32}
    small = ModelConfig(hidden_size=32, num_hidden_layers=2, **sizes, **fields)
    large = replace(small, hidden_size=64, num_hidden_layers=4, num_attention_heads=8, intermediate_size=96)
    model = build_model(large)
    initialize(model, 3)
    tiled = tile_weights(weights(small), small, large)
    new = load_initial_weights(model, InitialWeights(source="run", tokenizer_sha256="", read=lambda: tiled))
    # A ModernBERT's first layer has no LayerNorm before attention; what is copied from it begins with gains of one.
    assert new == ["bert.encoder.layer.1.attention.LayerNorm.weight"] * (small.family == "modernbert")


def test_two_tables_are_not_tiled_into_one():
    sizes = {"vocab_size": 70, "intermediate_size": 48, "max_position_embeddings": 32, "generator_size": 0.5}
    fields = {"family": "deberta-v3", "num_hidden_layers": 2, "embedding_sharing": "separate"}
    small = ModelConfig(hidden_size=32, num_attention_heads=4, **sizes, **fields)
    large = replace(small, hidden_size=64, num_attention_heads=8, embedding_sharing="shared")
    tiled = tile_weights(weights(small), small, large)
    with pytest.raises(CheckpointError, match="have a table of words each"):
        load_initial_weights(build_model(large), InitialWeights(source="run", tokenizer_sha256="", read=lambda: tiled))
    shallow = replace(large, generator_layers=1)
    with pytest.raises(ConfigError, match=r"generator_layers=1 is below the source's 2"):
        tile_weights(weights(small), small, shallow)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"hidden_size": 24, "num_attention_heads": 3}, r"model\.hidden_size=24 is below the source's 32"),
        ({"num_hidden_layers": 2}, r"model\.num_hidden_layers=2 is below the source's 3"),
        ({"hidden_size": 64}, r"heads 16 wide, the source's are 8.*Take 8 heads"),
    ],
)
def test_sizes_that_cannot_be_filled_are_refused(fields, named):
    with pytest.raises(ConfigError, match=named):
        tile_weights({}, SMALL, replace(SMALL, **fields))


def test_sizes_are_the_recipes_and_the_rest_the_sources():
    source = {"family": "bert", "hidden_size": 64, "num_hidden_layers": 2, "hidden_act": "gelu_new", "preset": None}
    flags = {"init_from": "runs/small", "init_tiling": True, "model": {"preset": "mini"}}
    model = load_run_config("debug", flags=flags, model_of=lambda name: source).model
    assert (model.hidden_size, model.num_hidden_layers, model.hidden_act) == (256, 4, "gelu_new")
    with pytest.raises(ConfigError, match="there is nothing to tile"):
        load_run_config("debug", flags={"init_tiling": True})
