"""How parameters lie in the flat tensors of buckets."""

from itertools import accumulate

import pytest
import torch

from megabert.engine.buckets import split_groups
from megabert.models.build import build_model
from megabert.optim.build import build_optimizer
from megabert.settings.config.families import FAMILIES
from megabert.settings.config.model import ModelConfig
from megabert.settings.config.run import OptimizerConfig

SIZES = {"vocab_size": 30_522, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
ELECTRA = {"generator_size": 0.5, "embedding_size": 64}
BYTES, OF_16_BITS = 16, 2


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [10_000, 30_000_000])
def test_every_parameter_begins_at_16_bytes(family, size):
    config = ModelConfig(family=family, **SIZES, intermediate_size=128, **(ELECTRA if family == "electra" else {}))
    with torch.device("meta"):
        model = build_model(config)
    optimizer = build_optimizer(model.named_parameters(), OptimizerConfig())
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    misplaced = {}
    for group in split_groups(optimizer.param_groups, model, size):
        numels = [parameter.numel() for parameter in group["params"]]
        starts = accumulate(numels[:-1], initial=0)
        for parameter, start in zip(group["params"], starts, strict=True):
            if start * OF_16_BITS % BYTES:
                misplaced[names[id(parameter)]] = start * OF_16_BITS % BYTES
    assert misplaced == {}
