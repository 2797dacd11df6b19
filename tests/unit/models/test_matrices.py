"""Which weights are matrices of the layers, for every family, and that `estimate` counts the same elements."""

import pytest
import torch

from megabert.models.build import build_model
from megabert.models.matrices import layer_matrices
from megabert.settings.config.families import FAMILIES
from megabert.settings.config.model import ModelConfig
from megabert.tooling.planning.memory import count_layer_matrices


def model_of(family: str, **fields) -> tuple[ModelConfig, torch.nn.Module]:
    config = ModelConfig(family=family, preset="tiny", vocab_size=200, **fields)
    with torch.device("meta"):
        return config, build_model(config)


@pytest.mark.parametrize("family", FAMILIES)
def test_as_many_elements_are_matrices_as_estimate_counts(family):
    config, model = model_of(family)
    named = dict(model.named_parameters())
    names = layer_matrices(model)
    assert sum(named[name].numel() for name in names) == count_layer_matrices(config)
    outside = ["embeddings", "pooler", "predictions", "bias", "LayerNorm", "convolution", "relative"]
    outside += ["seq_relationship"]
    assert not [name for name in names if any(word in name for word in outside) or named[name].dim() != 2]


def test_fused_matrices_are_told_apart_by_module():
    config, model = model_of("modernbert")
    whole, heads = (layer_matrices(model, per_head=per_head) for per_head in (False, True))
    parts = {".".join(name.split(".")[-3:]): (whole[name], heads[name]) for name in whole if ".layer.0." in name}
    assert parts == {
        "self.qkv.weight": (3, 3 * config.num_attention_heads),
        "attention.output.weight": (1, 1),
        "feed_forward.input_and_gate.weight": (2, 2),
        "feed_forward.output.weight": (1, 1),
    }
