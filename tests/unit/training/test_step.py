from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from megabert.engine.engine import UpdateResult
from megabert.models.bert import MLM, NSP, PretrainingOutput, Term
from megabert.models.electra import BINS
from megabert.optim import StepSettings
from megabert.training import step as step_module
from megabert.training.step import accumulate, area_under_curve, means_of, sums_of, update, weighted_loss, zero_sums

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


class RecordingEngine:
    """Takes losses, answers with prepared gradients, and records what it was told."""

    def __init__(self, bad: list[str], losses: list[float]) -> None:
        self.bad, self.losses = bad, list(losses)
        self.backward_losses: list[float] = []
        self.is_last: list[bool] = []
        self.waited = 0
        self.module = SimpleNamespace(terms=(MLM, NSP))

    def forward(self, _batch):
        loss = torch.tensor(self.losses.pop(0), requires_grad=True)
        zero = torch.tensor(0)
        return PretrainingOutput(mlm_loss_sum=loss, nsp_loss_sum=loss * 0 + 2, mlm_correct=zero + 3, nsp_correct=zero)

    def backward(self, loss, *, is_last):
        self.backward_losses.append(float(loss.detach()))
        self.is_last.append(is_last)

    def wait_for_backward(self):
        self.waited += 1

    def step(self, settings, sums):
        is_skipped = bool(self.bad) or not sums.isfinite().all()
        return UpdateResult(totals=sums, grad_norm=None if is_skipped else 1.5, nonfinite=tuple(self.bad))


def run(bad: list[str], losses: list[float]):
    engine = RecordingEngine(bad, losses)
    world = SimpleNamespace(
        size=2, is_main=True, device=torch.device("cpu"), gather=lambda value: [value, ["b.weight"]]
    )
    micro_batches = [SimpleNamespace(to=lambda *_, **__: None) for _ in losses]
    batch = SimpleNamespace(micro_batches=micro_batches, num_masked=10, num_instances=4, num_tokens=60)
    return engine, update(engine, batch, accumulate(engine, batch, world), StepSettings(lr=0.1), world)


def test_loss_is_normalised_over_the_global_batch():
    engine, result = run([], [5.0, 7.0])
    assert engine.backward_losses == pytest.approx([2 * (5 / 10 + 2 / 4), 2 * (7 / 10 + 2 / 4)])
    expected = {"loss": 2.2, "mlm_loss": 12 / 10, "mlm_accuracy": 6 / 10, "nsp_loss": 4 / 4, "nsp_accuracy": 0}
    assert result.losses == pytest.approx(expected)
    assert result.grad_norm == 1.5
    assert (engine.is_last, engine.waited) == ([False, True], 1)


def test_non_finite_gradients_skip_the_update_and_are_named(caplog):
    with caplog.at_level("WARNING", logger="megabert"):
        step_module.logger.propagate = True
        _, result = run(["a.weight"], [5.0])
    assert result.is_skipped
    assert "rank 0 in a.weight" in caplog.text
    assert "rank 1 in b.weight" in caplog.text


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_non_finite_loss_skips_the_update(loss):
    _, result = run([], [loss])
    assert result.is_skipped
