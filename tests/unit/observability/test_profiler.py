import gzip
import json

import pytest
import torch

from megabert.foundation.errors import ConfigError
from megabert.observability.profiler import StepProfiler
from megabert.settings.config.loading import merge_layers
from megabert.settings.config.run import LoggingConfig


def work(profiler: StepProfiler, steps: range) -> None:
    for step in steps:
        profiler.before(step)
        torch.ones(8, 8) @ torch.ones(8, 8)
        if profiler.ends_with(step):
            profiler.close(step)


def files(folder) -> list[str]:
    return sorted(path.name for path in (folder / "profile").glob("*"))


def test_chosen_steps_are_recorded(tmp_path):
    work(StepProfiler(LoggingConfig(profile_steps="3-4"), tmp_path, 0), range(1, 7))
    assert files(tmp_path) == ["rank_000_steps_3-4.json.gz", "rank_000_steps_3-4.txt"]
    with gzip.open(tmp_path / "profile" / "rank_000_steps_3-4.json.gz") as file:
        events = [event.get("name") for event in json.load(file)["traceEvents"]]
    assert events.count("aten::matmul") == 2
    assert "aten::matmul" in (tmp_path / "profile" / "rank_000_steps_3-4.txt").read_text()


def test_one_step_is_a_range_of_one(tmp_path):
    work(StepProfiler(LoggingConfig(profile_steps="2"), tmp_path, 0), range(1, 5))
    assert files(tmp_path)[0] == "rank_000_steps_2-2.json.gz"


@pytest.mark.parametrize(("ranks", "count"), [("main", 0), ("all", 2)])
def test_other_ranks_record_where_asked(tmp_path, ranks, count):
    work(StepProfiler(LoggingConfig(profile_steps="1", profile_ranks=ranks), tmp_path, 3), range(1, 3))
    assert len(files(tmp_path)) == count


def test_run_that_ends_early_writes_what_it_has(tmp_path):
    profiler = StepProfiler(LoggingConfig(profile_steps="2-100"), tmp_path, 0)
    work(profiler, range(1, 4))
    profiler.close(3)
    assert files(tmp_path)[0] == "rank_000_steps_2-3.json.gz"
    profiler.close(3)
    assert len(files(tmp_path)) == 2


def test_steps_are_numbers_or_ranges():
    assert merge_layers(LoggingConfig, {"profile_steps": "7"}).profile_steps == "7"
    for wrong in ("x", "0", "3-", "-3", "1,2", 7):
        with pytest.raises(ConfigError, match="profile_steps"):
            merge_layers(LoggingConfig, {"profile_steps": wrong})
