from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from megabert.models.bert import MLM, PretrainingOutput, Term
from megabert.models.electra import BINS
from megabert.settings.config.loading import merge_layers
from megabert.settings.config.run import RunConfig
from megabert.training import step as step_module
from megabert.training.state import TrainerState
from megabert.training.step import area_under_curve, means_of, sums_of, weighted_loss, zero_sums

TERMS = (MLM, Term("rtd", "tokens", 50.0))
COUNTS = {"masked": 10, "instances": 2, "tokens": 80}


def output(scale: float = 1.0) -> PretrainingOutput:
    number, count = torch.tensor(scale), torch.tensor(3)
    histogram = torch.zeros(2, BINS, dtype=torch.int64)
    histogram[0, 10] = histogram[1, 20] = 4
    return PretrainingOutput(
        mlm_loss_sum=number * 20,
        nsp_loss_sum=number * 0,
        mlm_correct=count,
        nsp_correct=count * 0,
        rtd_loss_sum=number * 40,
        rtd_correct=count * 20,
        rtd_histogram=histogram,
    )


def test_loss_is_the_weighted_sum_of_means():
    assert weighted_loss(output(), TERMS, counts=COUNTS, world_size=1).item() == pytest.approx(20 / 10 + 50 * 40 / 80)
    assert weighted_loss(output(), (MLM,), counts=COUNTS, world_size=4).item() == pytest.approx(4 * 20 / 10)


def test_micro_batches_add_up_to_means():
    sums = zero_sums(TERMS, torch.device("cpu"))
    for scale in (0.5, 1.5):
        sums += sums_of(output(scale), TERMS)
    means = means_of(sums, TERMS, COUNTS)
    assert means == pytest.approx(
        {"loss": 4 + 50, "mlm_loss": 4, "mlm_accuracy": 0.6, "rtd_loss": 1, "rtd_accuracy": 1.5, "rtd_auc": 1.0}
    )


def test_z_loss_enters_the_objective_and_has_no_accuracy():
    terms = (MLM, Term("z", "masked", 0.5))
    made = replace(output(), z_loss_sum=torch.tensor(30.0))
    assert weighted_loss(made, terms, counts=COUNTS, world_size=2).item() == pytest.approx(2 * (2 + 0.5 * 3))
    means = means_of(sums_of(replace(made, rtd_histogram=None), terms), terms, COUNTS)
    assert means == pytest.approx({"loss": 3.5, "mlm_loss": 2, "mlm_accuracy": 0.3, "z_loss": 3})


def test_area_under_the_curve_is_the_share_of_ordered_pairs():
    rng = np.random.default_rng(3)
    original, replaced = rng.integers(0, 30, 200), rng.integers(10, 40, 50)
    histogram = torch.from_numpy(np.stack([np.bincount(x, minlength=40) for x in (original, replaced)]))
    pairs = np.sign(replaced[:, None] - original[None]) / 2 + 0.5
    assert area_under_curve(histogram) == pytest.approx(pairs.mean())
    assert area_under_curve(torch.zeros(2, 40)) == 0.5


def test_a_growing_batch_counts_the_batches_of_its_phase(monkeypatch):
    """Batches are numbered over all phases; one that was skipped counts."""
    first = {"steps": 8, "global_batch_size": 7, "learning_rate": 1e-3}
    second = {**first, "initial_batch_size": 3, "batch_warmup_steps": 4}
    config = merge_layers(RunConfig, {"phases": [first, second]})
    monkeypatch.setattr(step_module, "StepPacker", lambda train, **options: options)
    monkeypatch.setattr(step_module, "PackedLoader", lambda packer, **_: packer)
    state = TrainerState(phase=1, step=10, phase_step=2, phase_skipped=1, batches=11)
    world = SimpleNamespace(device=torch.device("cpu"), rank=0, size=1)
    numbers_of = step_module.open_loader(config, state, None, shape=None, world=world)["global_batch_size"]
    assert [len(numbers_of(number)) for number in range(8, 14)] == [3, 4, 5, 6, 7, 7]
    assert numbers_of(9) == range(3, 7)
