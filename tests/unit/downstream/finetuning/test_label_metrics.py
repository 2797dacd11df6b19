"""Metrics of labels and numbers, on values worked out by hand."""

import math

import pytest

from megabert.downstream.finetuning.metrics import METRICS


def test_metrics_on_a_worked_example():
    gold, predicted = [1, 1, 1, 0, 0, 0, 0, 0], [1, 1, 0, 1, 0, 0, 0, 0]  # 2 hits, 1 miss, 1 false alarm, 4 rejections
    assert METRICS["accuracy"](gold, predicted) == 6 / 8
    assert METRICS["f1"](gold, predicted) == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))
    assert METRICS["mcc"](gold, predicted) == pytest.approx((2 * 4 - 1 * 1) / math.sqrt(3 * 3 * 5 * 5))


def test_correlations_on_a_worked_example():
    assert METRICS["pearson"]([1, 2, 3], [2, 4, 7]) == pytest.approx(5 / math.sqrt(2 * 38 / 3))
    assert METRICS["spearman"]([1, 2, 3, 4], [10, 20, 40, 30]) == pytest.approx(0.8)


@pytest.mark.parametrize("name", ["pearson", "spearman"])
def test_constant_predictions_correlate_with_nothing(name):
    assert METRICS[name]([1.0, 2.0, 3.0], [5.0, 5.0, 5.0]) == 0
