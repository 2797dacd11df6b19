"""Parameters counted from sizes are those of the model that is built."""

import pytest
import torch

from megabert.models.build import build_model
from megabert.settings.config.families import FAMILIES
from megabert.settings.config.loading import load_run_config, shipped_names
from megabert.settings.config.model import ModelConfig
from megabert.tooling.planning.memory import count_parameters

SIZES = {"hidden_size": 128, "num_attention_heads": 2, "num_hidden_layers": 3, "intermediate_size": 96}
VARIANTS = [
    *({"family": family} for family in FAMILIES),
    {"embedding_size": 64},
    {"family": "albert", "num_hidden_groups": 3},
    {"family": "electra", "generator_size": 0.5},
    {"family": "electra", "generator_size": 0.5, "generator_layers": 1},
    *(
        {"family": "deberta-v3", "generator_size": 0.5, "generator_layers": 2, "embedding_sharing": way}
        for way in ("disentangled", "shared", "separate")
    ),
    {"family": "deberta-v3", "generator_size": 1.0, "embedding_size": 64},
    {"family": "deberta", "pos_att_type": ("p2c",), "position_biased_input": True},
    {"family": "deberta-v2", "share_att_key": False, "norm_rel_ebd": "none", "conv_kernel_size": 3},
]


def built(model: ModelConfig, objective: str | None) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build_model(model, objective=objective).parameters())


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_count_is_that_of_the_built_model(variant):
    model = ModelConfig(**{**SIZES, **variant}, vocab_size=1000)
    for objective in model.traits.objectives:
        assert count_parameters(model, objective) == built(model, objective)


@pytest.mark.parametrize("recipe", shipped_names("recipe"))
def test_count_of_a_recipe_is_that_of_the_built_model(recipe):
    model = load_run_config(recipe, [], {"model": {"vocab_size": 30_522}}).model
    assert count_parameters(model) == built(model, None)
