import math

import pytest
from pydantic import ValidationError

from megabert.models.bert import BertForPreTraining
from megabert.optim import learning_rate, linear_warmup_decay, no_decay
from megabert.optim.schedules import planned_steps
from megabert.settings.config.loading import load_run_config
from megabert.settings.config.phase import PhaseConfig


def phase(**options) -> PhaseConfig:
    return PhaseConfig(**{"steps": 7038, "global_batch_size": 1, "learning_rate": 6e-3, **options})


def test_polynomial_decay_is_nvidias_poly_warm_up():
    recipe = phase(warmup_ratio=0.2843, decay_power=0.5)
    for step in (1, 1000, 2000):
        assert learning_rate(recipe, step) == pytest.approx(6e-3 * (step / 7038) / 0.2843)
    for step in (2001, 5000, 7037):
        assert learning_rate(recipe, step) == pytest.approx(6e-3 * (1 - step / 7038) ** 0.5)
    assert learning_rate(recipe, 7038) == 0.0
    assert learning_rate(phase(steps=100, warmup_ratio=0.25, decay_power=0.5), 25) == pytest.approx(6e-3 * 0.75**0.5)


def test_constant_holds_the_peak_after_warm_up():
    recipe = phase(warmup_ratio=0.1, decay="constant")
    assert learning_rate(recipe, 703) < 6e-3
    assert {learning_rate(recipe, step) for step in (704, 5000, 7038)} == {6e-3}


@pytest.mark.parametrize(
    ("decay", "shape"),
    [
        ("linear", lambda y: 1 - y),
        ("cosine", lambda y: (1 + math.cos(math.pi * y)) / 2),
        ("one_minus_sqrt", lambda y: 1 - math.sqrt(y)),
        ("polynomial", lambda y: (1 - y) ** 0.5),
    ],
)
def test_warm_up_stable_decay_in_one_phase(decay, shape):
    power = {"decay_power": 0.5} if decay == "polynomial" else {}
    recipe = phase(steps=1000, warmup_ratio=0.1, decay=decay, decay_ratio=0.2, final_learning_rate=1e-4, **power)
    rates = [learning_rate(recipe, step) for step in range(1, 1001)]
    assert rates[:99] == pytest.approx([6e-3 * step / 100 for step in range(1, 100)])
    assert rates[99:800] == pytest.approx([6e-3] * 701)
    assert rates[800:] == pytest.approx([1e-4 + 5.9e-3 * shape((step - 800) / 200) for step in range(801, 1001)])
    assert rates[-1] == 1e-4


@pytest.mark.parametrize("decay", ["linear", "cosine", "one_minus_sqrt"])
@pytest.mark.parametrize("warmup_ratio", [0.0, 0.25])
def test_by_default_the_decay_begins_where_the_warm_up_ends(decay, warmup_ratio):
    default = phase(steps=80, warmup_ratio=warmup_ratio, decay=decay)
    named = phase(steps=80, warmup_ratio=warmup_ratio, decay=decay, decay_ratio=1 - warmup_ratio)
    rates = [learning_rate(default, step) for step in range(1, 81)]
    assert rates == [learning_rate(named, step) for step in range(1, 81)]
    assert max(rates[20:]) < 6e-3
    assert rates[-1] == 0


@pytest.mark.parametrize("decay", ["polynomial", "linear", "cosine", "constant"])
def test_a_phase_that_warms_up_to_its_end_ends_at_the_highest_rate(decay):
    rates = [learning_rate(phase(steps=4, warmup_ratio=1.0, decay=decay), step) for step in (1, 2, 3, 4)]
    assert rates == pytest.approx([1.5e-3, 3e-3, 4.5e-3, 6e-3])


def test_planned_steps_are_evenly_spaced_over_all_phases():
    phases = [
        {"steps": 5, "global_batch_size": 8, "learning_rate": 1.0, "initial_batch_size": 2, "batch_warmup_steps": 3},
        {"steps": 1, "global_batch_size": 3, "learning_rate": 0.5, "decay": "constant", "masked_lm_prob": 0.3},
    ]
    first, second = planned_steps(load_run_config("debug", flags={"phases": phases}), points=3)
    assert [(step.step, step.batch_size) for step in first] == [(1, 2), (3, 6), (5, 8)]
    assert [step.rate for step in first] == pytest.approx([0.8, 0.4, 0.0])
    assert second == [(6, 0.5, 3, 0.3)]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"warmup_ratio": 0.5, "decay_ratio": 0.6}, "together they are 1 at most"),
        ({"final_learning_rate": 7e-3}, "final_learning_rate=0.007 is above learning_rate=0.006"),
        ({"decay": "constant", "decay_ratio": 0.1}, "decay=constant does not fall"),
        ({"decay": "constant", "final_learning_rate": 1e-4}, "decay=constant does not fall"),
    ],
)
def test_schedules_that_contradict_themselves_are_refused(options, named):
    with pytest.raises(ValidationError, match=named):
        phase(**options)


def test_no_decay_fits_the_real_model():
    from megabert.settings.config.model import ModelConfig

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
