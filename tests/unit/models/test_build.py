"""Weights of another model that a run starts from, in a model that has more."""

from dataclasses import replace

import torch

from megabert.models.build import InitialWeights, build_model, initialize, load_initial_weights
from megabert.settings.config.model import ModelConfig

CONFIG = ModelConfig(
    family="electra",
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
)


def test_discriminator_begins_with_the_weights_of_a_masked_lm():
    masked_lm, electra = build_model(CONFIG), build_model(replace(CONFIG, generator_size=0.5))
    initialize(masked_lm, 1)
    initialize(electra, 2)
    fresh = {name: parameter.detach().clone() for name, parameter in electra.named_parameters()}
    state = {name: parameter.detach() for name, parameter in masked_lm.named_parameters()}
    load_initial_weights(electra, InitialWeights(source="run", tokenizer_sha256="", read=lambda: state))
    for name, parameter in electra.named_parameters():
        assert torch.equal(parameter, state[name] if name.startswith("bert.") else fresh[name]), name
