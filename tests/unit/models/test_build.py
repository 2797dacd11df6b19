"""Weights of another model that a run starts from, in a model that has more."""

from dataclasses import replace

import torch
from support.tiny_models import tiny_config

from megabert.models.build import InitialWeights, build_model, initialize, load_initial_weights

CONFIG = tiny_config("electra")


def test_discriminator_begins_with_the_weights_of_a_masked_lm():
    masked_lm, electra = build_model(CONFIG), build_model(replace(CONFIG, generator_size=0.5))
    initialize(masked_lm, 1)
    initialize(electra, 2)
    fresh = {name: parameter.detach().clone() for name, parameter in electra.named_parameters()}
    state = {name: parameter.detach() for name, parameter in masked_lm.named_parameters()}
    load_initial_weights(electra, InitialWeights(source="run", tokenizer_sha256="", read=lambda: state))
    for name, parameter in electra.named_parameters():
        assert torch.equal(parameter, state[name] if name.startswith("bert.") else fresh[name]), name
