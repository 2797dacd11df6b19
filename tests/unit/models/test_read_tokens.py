"""The last layer leaves out tokens that nobody reads: losses, gradients and dropout are those of computing them all."""

from dataclasses import replace

import pytest
import torch
from unit.models.test_bert import CONFIG, model_of
from unit.models.test_deberta import CONFIGS
from unit.models.test_modern import DROPPING

MODELS = {
    "bert": (CONFIG, {}),
    "one layer": (replace(CONFIG, num_hidden_layers=1), {}),
    "no sentence objective": (CONFIG, {"objective": "none"}),
    "shared weights": (replace(CONFIG, family="albert", embedding_size=16, num_hidden_groups=1), {"objective": "sop"}),
    "recomputed": (CONFIG, {"activation_checkpointing": True}),
    "modernbert": (DROPPING, {"objective": "none"}),
    "convolution as last layer": (replace(CONFIGS["second, convolution"], num_hidden_layers=1), {"objective": "none"}),
    **{f"deberta {name}": (config, {"objective": "none"}) for name, config in CONFIGS.items()},
}


def losses_and_gradients(model, batch, **options):
    output = model(batch, **options)
    (output.mlm_loss_sum + output.nsp_loss_sum).backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    return (output.mlm_loss_sum, output.nsp_loss_sum), gradients


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("padding", [0, 5])
def test_losses_and_gradients_are_those_of_reading_all_tokens(name, padding, make_batch):
    config, options = MODELS[name]
    model = model_of(config, **options).double()
    batch = make_batch([20, 7, 13], vocab_size=70, padding=padding)
    losses, gradients = losses_and_gradients(model, batch)
    expected_losses, expected = losses_and_gradients(model, batch, with_hidden=True)
    torch.testing.assert_close(losses, expected_losses, rtol=1e-6, atol=0)  # losses are float32
    for parameter, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[parameter], rtol=1e-6, atol=1e-9)


def test_last_layer_computes_only_tokens_that_are_read(make_batch):
    model = model_of()
    batch = make_batch([30, 25], vocab_size=70)
    rows = []
    for layer in model.bert.encoder.layer:
        layer.intermediate.register_forward_hook(lambda _, inputs, __: rows.append(len(inputs[0])))
    model(batch)
    model(batch, with_hidden=True)
    model.bert(batch)
    assert rows == [55, len(batch.masked_positions_M) + 2, 55, 55, 55, 55]
