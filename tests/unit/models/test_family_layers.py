"""What BERT and families with layers of their own keep: sequences apart, packing, recomputation, 16 bits."""

from dataclasses import replace

import pytest
import torch
from unit.models.test_bert import CONFIG, gradients, loss_of, whole_and_parts
from unit.models.test_bert import model_of as bert_of
from unit.models.test_deberta import CONFIGS, DECODING
from unit.models.test_modern import DROPPING

from megabert.settings.config.model import ModelConfig

FAMILIES = {
    "bert": CONFIG,
    **{f"deberta, {name}": config for name, config in CONFIGS.items()},
    "deberta, decoder": replace(DECODING, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1),
    "modernbert": DROPPING,
}


def model_of(config: ModelConfig, **options):
    return bert_of(config, objective="nsp" if config.family == "bert" else "none", **options)


@pytest.fixture(params=FAMILIES)
def config(request) -> ModelConfig:
    return FAMILIES[request.param]


def test_heads_wider_than_the_kernels_take_go_to_plain_torch(config):
    chosen = {
        width: model_of(replace(config, hidden_size=2 * width, num_attention_heads=2)).bert.encoder.ops.attention
        for width in (128, 130)
    }
    assert chosen == {128: "auto", 130: "torch"}


@pytest.mark.parametrize("lengths", [[20, 7], []])
def test_every_parameter_gets_a_gradient(config, lengths, make_batch):
    parameter_gradients = gradients(model_of(config), make_batch(lengths, vocab_size=70, padding=3))
    for name, gradient in parameter_gradients.items():
        assert gradient is not None, name
        assert gradient.isfinite().all(), name
        assert bool(lengths) == bool(gradient.abs().sum() > 0), name


def test_tokens_attend_within_their_sequence_and_its_order_matters(config, make_batch):
    model = model_of(config).eval()
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    batch = make_batch([20, 7], vocab_size=70)
    before, _ = model.bert(batch)
    batch.input_ids_T[20:] = batch.input_ids_T[20:].flip(0)
    after, _ = model.bert(batch)
    torch.testing.assert_close(after[:20], before[:20], rtol=0, atol=0)
    assert (after[20:].flip(0) - before[20:]).abs().max() > 0.1


def test_padding_and_packing_change_neither_losses_nor_gradients(config, make_batch):
    """Two micro-batches, one of them padded, equal one, dropout on: masks are keyed by instance."""
    whole, parts = whole_and_parts(make_batch)
    together = gradients(model_of(config), whole)
    apart = gradients(model_of(config), *parts)
    for name, gradient in together.items():
        torch.testing.assert_close(apart[name], gradient, rtol=1e-4, atol=1e-5, msg=name)


def test_activation_checkpointing_gives_equal_losses_and_gradients(config, make_batch):
    batch = make_batch([20, 7], vocab_size=70)
    plain, recomputing = model_of(config), model_of(config, activation_checkpointing=True)
    assert torch.equal(loss_of(plain, batch), loss_of(recomputing, batch))
    expected = gradients(plain, batch)
    for name, gradient in gradients(recomputing, batch).items():
        assert torch.equal(gradient, expected[name]), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_losses_are_float32_and_near(dtype, config, make_batch):
    batch = make_batch([20, 7, 13], vocab_size=70)
    expected = loss_of(model_of(config), batch)
    model = model_of(config).to(dtype)
    loss = loss_of(model, batch)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected, rtol=2e-2, atol=0)
    loss.backward()
    assert all(parameter.grad.dtype == dtype for parameter in model.parameters())
