import math

import pytest

from megabert.config.run import PhaseConfig
from megabert.models.bert import BertForPreTraining
from megabert.optim import learning_rate, linear_warmup_decay, no_decay


def phase(**options) -> PhaseConfig:
    return PhaseConfig(**{"steps": 7038, "global_batch_size": 1, "learning_rate": 6e-3, **options})


def test_polynomial_decay_is_nvidias_poly_warm_up():
    recipe = phase(warmup_ratio=0.2843, decay_power=0.5)
    for step in (1, 1000, 2000):
        assert learning_rate(recipe, step) == pytest.approx(6e-3 * (step / 7038) / 0.2843)
    for step in (2001, 5000, 7037):
        assert learning_rate(recipe, step) == pytest.approx(6e-3 * (1 - step / 7038) ** 0.5)
    assert learning_rate(recipe, 7038) == 0.0


def test_constant_holds_the_peak_after_warm_up():
    recipe = phase(warmup_ratio=0.1, decay="constant")
    assert learning_rate(recipe, 703) < 6e-3
    assert {learning_rate(recipe, step) for step in (704, 5000, 7038)} == {6e-3}


def test_without_warm_up_the_first_step_is_almost_the_peak():
    assert learning_rate(phase(), 1) == pytest.approx(6e-3, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bert.embeddings.word_embeddings.weight", False),
        ("bert.embeddings.LayerNorm.weight", True),
        ("bert.encoder.layer.0.attention.output.LayerNorm.bias", True),
        ("cls.predictions.bias", True),
        ("bert.pooler.dense.weight", False),
    ],
)
def test_no_decay_by_name(name, expected):
    assert no_decay(name) is expected


def test_no_decay_fits_the_real_model():
    from megabert.config.model import ModelConfig

    model = BertForPreTraining(
        ModelConfig(vocab_size=100, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    )
    for name, parameter in model.named_parameters():
        assert no_decay(name) == (parameter.ndim == 1), name


@pytest.mark.parametrize(("steps", "warmup_ratio"), [(10, 0.0), (10, 0.3), (7, 0.1), (1, 0.0), (1, 0.5), (5, 1.0)])
def test_finetuning_rate_rises_to_the_peak_and_falls_in_a_line(steps, warmup_ratio):
    rates = [linear_warmup_decay(s, steps=steps, warmup_ratio=warmup_ratio, peak=1.0) for s in range(1, steps + 1)]
    warmup = min(math.ceil(steps * warmup_ratio), steps - 1)
    assert rates[:warmup] == pytest.approx([(k + 1) / warmup for k in range(warmup)])
    assert rates[warmup:] == pytest.approx([1 - k / (steps - warmup) for k in range(steps - warmup)])
    assert min(rates) > 0
