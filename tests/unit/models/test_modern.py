"""ModernBERT in the model: sizes, first weights, dropout, positions (test_parity.py, test_convert.py: numbers)."""

from dataclasses import replace

import pytest
import torch
from support.parity_models import count_encoder_parameters
from support.tiny_models import tiny_config
from unit.models.test_bert import loss_of, model_of

from megabert.models.build import initial_value
from megabert.settings.config.model import ModelConfig
from megabert.settings.config.phase import PhaseConfig

PLAIN = tiny_config("modernbert", num_hidden_layers=5, intermediate_size=44, local_attention=8)
DROPPING = replace(
    PLAIN, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, embedding_dropout=0.1, mlp_dropout=0.1
)
OPTIONS = {"objective": "none"}


@pytest.mark.parametrize(("preset", "millions"), [("base", 149), ("large", 395)])
def test_presets_have_the_papers_size(preset, millions):
    config = ModelConfig(family="modernbert", preset=preset, vocab_size=50_368)
    head = config.hidden_size * (config.hidden_size + 1) + 50_368
    assert round((count_encoder_parameters(config) + head) / 1e6) in (millions, millions + 1)


def test_outputs_start_smaller_the_more_layers_there_are():
    shape = torch.Size([64, 64])

    def deviation(name, layers):
        config = replace(PLAIN, num_hidden_layers=layers)
        return initial_value(f"bert.encoder.layer.0.{name}.weight", shape, seed=1, config=config).std().item()

    for name in ("attention.output", "feed_forward.output"):
        assert deviation(name, 8) == pytest.approx(deviation("attention.self.qkv", 8) / 4, rel=0.05)
        assert deviation(name, 2) == pytest.approx(2 * deviation(name, 8), rel=1e-5)


def test_another_base_of_the_global_positions_is_that_of_a_model_built_with_it(make_batch):
    batch = make_batch([20, 7], vocab_size=70)
    model, built = (model_of(replace(PLAIN, global_rope_theta=base), **OPTIONS) for base in (1e4, 20.0))
    with torch.no_grad():
        for parameter in (*model.parameters(), *built.parameters()):
            parameter.mul_(10)  # positions hardly count in the first weights
        before = model(batch, with_hidden=True).hidden_TD
        model.begin_phase(PhaseConfig(steps=1, global_batch_size=1, learning_rate=1e-3, global_rope_theta=20.0))
        after, expected = (given(batch, with_hidden=True).hidden_TD for given in (model, built))
    assert torch.equal(after, expected)
    assert not torch.allclose(after, before, atol=1e-2)


@pytest.mark.parametrize(
    "site", ["hidden_dropout_prob", "attention_probs_dropout_prob", "embedding_dropout", "mlp_dropout"]
)
def test_each_dropout_drops_in_training_alone(site, make_batch):
    batch = make_batch([20, 7], vocab_size=70)
    plain, dropping = model_of(PLAIN, **OPTIONS), model_of(replace(PLAIN, **{site: 0.3}), **OPTIONS)
    assert loss_of(dropping, batch) != loss_of(plain, batch)
    assert loss_of(dropping.eval(), batch) == loss_of(plain.eval(), batch)
