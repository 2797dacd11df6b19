"""Rates measured by a small build: its text, and how seconds become megabytes per second."""

import itertools
from types import SimpleNamespace

from data_prep.commands import estimate as rates
from data_prep.config.build import BuildConfig, SourceConfig
from data_prep.execution.work_units import Unit
from data_prep.planning.estimate import RATES


def test_rates_are_megabytes_per_second_of_each_step(monkeypatch):
    builds = []

    def build_shards(config, folder, executor):
        builds.append(config)
        units = [Unit(folder, step, "0", str, None, {}, "") for step in ("extract", "tokens", "instances-32")]
        assert [result for _, result in executor.run(str, units)] == [str(unit) for unit in units]

    ticks = itertools.count(step=2)  # each unit takes two seconds
    monkeypatch.setattr(rates, "build_shards", build_shards)
    monkeypatch.setattr(rates, "time", SimpleNamespace(process_time=lambda: next(ticks)))
    measured = rates.measured_rates(BuildConfig(sources=(SourceConfig(input="texts"),), lengths=(32, 64)))
    first, second = builds
    assert first == second
    assert first.lengths == (32,)
    assert measured.keys() == {"extract", "tokens", "instances"} <= RATES.keys()
    assert 2.5 < measured["extract"] * 2 < 3.5  # megabytes of text
    assert measured["instances"] == (2 + first.validation_share) * measured["extract"]
