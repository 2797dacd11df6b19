"""Schedules as bars of characters, for every recipe that the package ships."""

import pytest

from megabert.observability.flops import GPUS
from megabert.settings.config.loading import load_run_config, shipped_names
from megabert.tooling.planning.estimate import estimate
from megabert.tooling.planning.schedule_plot import draw_schedules
from megabert.tooling.planning.step_time import Cluster

TOKENS = {"modernbert_base": 2.019e12, "modernbert_large": 2e12, "modernbert_1gpu": 20e9, "cramming": 10e9}


@pytest.mark.parametrize("recipe", shipped_names("recipe"))
def test_every_recipe_is_estimated_and_drawn(recipe):
    plan = estimate(load_run_config(recipe), Cluster(gpu=GPUS["h200"], nodes=1, gpus_per_node=8))
    config = plan.config
    tokens = sum(phase.steps * phase.tokens_per_step for phase in plan.phases)
    assert tokens == pytest.approx(TOKENS.get(recipe, tokens), rel=1e-3)
    lines = draw_schedules(config, [0.15] * len(config.phases))
    ramps = any(phase.initial_batch_size for phase in config.phases)
    assert any(line.startswith("  learning rate, ") for line in lines)
    assert any("instances per batch, " in line for line in lines) == (ramps or len(config.phases) > 1)
    drawn = [line for line in lines if line.startswith("    |")]
    assert drawn
    assert all(line.count("|") == len(config.phases) + 1 for line in drawn)
