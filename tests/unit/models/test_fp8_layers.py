"""Models whose encoder layers multiply in 8 bits: which layers do, how they learn, and a value that is not finite."""

import pytest
import torch

from megabert.data.batch import probe_batch
from megabert.models.build import build_model, initialize
from megabert.models.layers import Dense
from megabert.ops import dense, fp8
from megabert.settings.config.model import ModelConfig

SIZES = {"vocab_size": 60, "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
KINDS = {
    "bert": {},
    "albert": {"embedding_size": 16},
    "electra": {"embedding_size": 16, "generator_size": 0.5},
    "deberta-v3": {"generator_size": 0.5, "position_buckets": 8},
    "modernbert": {},
}


@pytest.mark.parametrize("family", KINDS)
def test_only_layers_multiply_in_8_bits(family):
    config = ModelConfig(family=family, **SIZES, **KINDS[family])
    for in_fp8 in (False, True):
        model = build_model(config, in_fp8=in_fp8)
        of_layers = {name for name, module in model.named_modules() if isinstance(module, Dense) and ".layer." in name}
        found = {name for name, module in model.named_modules() if getattr(module, "in_fp8", False)}
        assert found == (of_layers if in_fp8 else set())
        assert len(of_layers) >= 4


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_a_layer_makes_eight_products(monkeypatch, family):
    products = []

    def counted(*factors, **options):
        products.append(factors[1].is_contiguous())
        return fp8.row_product(*factors, **options)

    monkeypatch.setattr(dense, "row_product", counted)
    model = build_model(ModelConfig(family=family, **SIZES), in_fp8=True)
    initialize(model, 1)
    model(probe_batch(tokens=64, length=16)).mlm_loss_sum.backward()
    assert products == 8 * [True] + 8 * [False], "two layers: outputs, then gradients of inputs, by turned weights"


def gradients(*, in_fp8):
    """Return the first layer's gradients of weights, of a loss that is normalised over a large global batch."""
    model = build_model(ModelConfig(**SIZES), in_fp8=in_fp8)
    initialize(model, 1)
    (model.bfloat16()(probe_batch(tokens=256, length=16)).mlm_loss_sum / 1e6).backward()
    layer = model.bert.encoder.layer[0]
    return [module.weight.grad.double() for module in layer.modules() if isinstance(module, Dense)]


def test_gradients_are_those_of_bf16_and_with_frozen_scales_they_vanish(monkeypatch):
    exact, ours = gradients(in_fp8=False), gradients(in_fp8=True)
    monkeypatch.setattr(fp8, "scales_of", lambda rows_RK: torch.ones(len(rows_RK), 1))
    frozen = gradients(in_fp8=True)
    errors = [[float((a - b).norm() / b.norm()) for a, b in zip(some, exact, strict=True)] for some in (ours, frozen)]
    assert max(errors[0]) < 0.2, errors
    assert max(errors[1]) > 0.9, errors


def test_an_infinity_reaches_the_loss_through_products_in_8_bits():
    model = build_model(ModelConfig(**SIZES), in_fp8=True).bfloat16()
    initialize(model, 1)
    with torch.no_grad():
        model.bert.embeddings.LayerNorm.bias[3] = torch.inf
    assert not model(probe_batch(tokens=64, length=16)).mlm_loss_sum.isfinite()


def test_casts_are_the_same_after_a_batch_with_an_infinity():
    losses = []
    for meets_infinity in (True, False):
        model = build_model(ModelConfig(**SIZES), in_fp8=True).bfloat16()
        initialize(model, 1)
        for parameter in model.parameters():
            fp8.reset_casts(parameter)
        if meets_infinity:
            bad = probe_batch(tokens=64, length=16)
            with model.bert.embeddings.register_forward_hook(lambda module, inputs, out: out / 0):
                loss = model(bad).mlm_loss_sum
            loss.backward()
            assert not loss.isfinite()
            assert not model.bert.encoder.layer[0].attention.self.qkv.weight.grad.isfinite().all()
            model.zero_grad()
        loss = model(probe_batch(tokens=64, length=16)).mlm_loss_sum
        loss.backward()
        losses.append([loss, *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)])
    assert [torch.equal(a, b) for a, b in zip(*losses, strict=True)] == [True] * len(losses[0])
