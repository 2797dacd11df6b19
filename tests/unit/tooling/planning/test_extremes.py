"""The largest legal number of every field is planned at once: nothing counts up to it, or makes a list of it."""

from typing import Any

import pytest

from megabert.data.order import BEGINNING
from megabert.foundation.errors import ConfigError
from megabert.observability.flops import gpu_by_name
from megabert.optim.schedules import planned_steps
from megabert.settings.config.families import FAMILIES
from megabert.settings.config.fields import field_table
from megabert.settings.config.loading import load_run_config
from megabert.settings.config.run import RunConfig
from megabert.tooling.planning.estimate import estimate
from megabert.tooling.planning.estimate_page import render_estimate
from megabert.tooling.planning.step_time import Cluster

LARGE = (2**63 - 1, 10**15, 10**12, 10**9, 10**7, 2**24, 10**6, 2**20, 2**16, 10**4, 1024, 1000, 64, 3, 2, 1)
LARGE = (*LARGE, 999_999, 1023, 9.9e11, 1.0, 0.999999, 0.5)
BESIDE: dict[str, dict[str, Any]] = {
    "generator_size": {"family": "electra"},
    "generator_layers": {"family": "electra", "generator_size": 0.5},
    "final_masked_lm_prob": {"masked_lm_prob": 0.15},
    "initial_batch_size": {"batch_warmup_steps": 10, "global_batch_size": 10**6},
    "batch_warmup_steps": {"initial_batch_size": 1},
    "batch_warmup_tokens": {"initial_batch_size": 1},
    "final_learning_rate": {"learning_rate": 1000},
    "cache_limit": {"cache": "cache"},
}
"""Other fields that some fields need."""
CLUSTER = Cluster(gpu=gpu_by_name("h100"), nodes=1, gpus_per_node=8)
NUMBERS = [
    row
    for row in field_table(RunConfig)
    if row.kinds & {int, float} and not row.is_list and row.path != "phases.N.temperature"  # asks for shards
]


def with_largest(path: str) -> RunConfig:
    """Return the debug recipe with the largest number that a field takes, given its other fields."""
    section, _, name = path.rpartition(".")
    family = next((key for key, row in FAMILIES.items() if name in row.own_fields), BESIDE.get(name, {}).get("family"))
    beside = {**BESIDE.get(name, {}), **({"family": family} if family and section == "model" else {})}
    for value in LARGE:
        layer: Any = {**beside, name: value}
        for part in reversed(section.split(".") if section else []):
            layer = {"0" if part == "N" else part: layer}
        if name == "global_rope_theta":
            layer.setdefault("model", {})["family"] = "modernbert"
        try:
            return load_run_config("debug", flags=layer)
        except ConfigError as error:
            refusal = error
    raise refusal


@pytest.mark.timeout(60)
@pytest.mark.parametrize("row", NUMBERS, ids=lambda row: row.path)
def test_the_largest_number_of_a_field_is_planned_at_once(row):
    config = with_largest(row.path)
    assert config.most_checkpoints > 0
    if config.phases[0].steps is not None:
        assert len(planned_steps(config, 100)) == len(config.phases)
        assert config.phases[0].num_instances > 0
    if row.path in ("phases.N.tokens", "phases.N.batch_warmup_tokens"):
        with pytest.raises(ConfigError, match="batches of these shards; 1,000,000,000 are allowed"):
            estimate(config, CLUSTER, instances=1000)
    else:
        assert render_estimate(estimate(config, CLUSTER, instances=1000), hours=None)


@pytest.mark.timeout(60)
def test_the_largest_batch_of_the_smallest_split_is_taken_at_once():
    size = with_largest("phases.N.global_batch_size").phases[0].global_batch_size
    ranges, position = BEGINNING.take(size, 3)
    assert size == sum(stop - start for _, start, stop in ranges) == 3 * position.epoch + position.offset
