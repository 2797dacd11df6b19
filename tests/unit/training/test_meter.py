from types import SimpleNamespace

import pytest
import torch

from megabert.ops import backend
from megabert.settings.config.loading import load_run_config
from megabert.training import meter as module
from megabert.training.meter import Meter


def test_spread_and_slowest_rank_follow_each_ranks_own_computing_time(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    # The other two ranks take 1 s and 4 s where this one takes 2 s; all of them wait for the slowest.
    world = SimpleNamespace(device=torch.device("cpu"), gather=lambda busy: [1.0, busy, 4.0])
    meter = Meter(load_run_config("debug", flags={"precision": "fp32"}), world)
    with meter.timing("computing"):
        now[0] = 2.0
    backend._log_compilation(metadata={"name": "probe"}, times=SimpleNamespace(total=1_500_000), cache_hit=False)
    now[0] = 4.0
    values = meter.read()
    assert values["perf/step_time_spread_pct"] == pytest.approx(75)
    assert values["perf/slowest_rank"] == 2
    assert values["perf/compiled_kernels"] == 1
    assert (values["perf/step_s"], values["perf/compute_s"]) == (4.0, 4.0), "the slowest rank computes all the time"
    now[0] = 5.0
    assert meter.read()["perf/compiled_kernels"] == 0
