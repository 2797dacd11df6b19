"""The model of a step's seconds, held against published tables."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.scaling import published
from benchmarks.scaling.__main__ import TARGET_EFFICIENCY, render_scaling
from benchmarks.scaling.strong import render_strong
from megabert.models.build import build_model
from megabert.tooling.planning.estimate import EFFICIENCY

PAGE = Path(__file__).resolve().parents[3] / "benchmarks" / "scaling" / "README.md"
AIM_PCT = 10.0


@pytest.mark.parametrize("system", published.PUBLISHED, ids=lambda system: system.name)
def test_model_fitted_on_the_smallest_point_predicts_the_others(system):
    _, predictions = published.predict(system)
    assert abs(published.worst_error_pct(predictions)) < AIM_PCT
    assert [p.predicted_s for p in predictions if p.is_fitted] == pytest.approx([system.seconds[min(system.seconds)]])


def test_shares_of_the_peak_are_the_fitted_ones():
    assert EFFICIENCY["v100"] == pytest.approx(published.predict(published.DEEPSPEED)[0], abs=0.005)
    assert EFFICIENCY["a100"] == pytest.approx(published.predict(published.NVIDIA_128)[0], abs=0.005)


def test_parameters_of_the_published_model_are_counted():
    import torch

    with torch.device("meta"):
        counted = sum(parameter.numel() for parameter in build_model(published.BERT_LARGE).parameters())
    assert counted == published.BERT_LARGE_PARAMETERS


def test_page_shows_what_the_command_prints():
    page = PAGE.read_text(encoding="utf-8")
    assert render_scaling() in page
    assert render_strong(TARGET_EFFICIENCY) in page
