"""One leg inside nodes and one across: the same sums, fewer bytes across, and what 16 bits between them cost."""

import counted_training
import pytest
import two_legs
from toy_training import ds_config

from megabert.engine.build import build_engine
from megabert.engine.two_legs import _ranks_per_node
from megabert.errors import ConfigError

BF16_ROUNDING = 2**-9  # at most, of each number


@pytest.mark.parametrize("engine", ["zero1", "bf16_zero2"])
def test_two_legs_sum_and_gather_the_same(workers, engine):
    errors = workers(2).run(two_legs.compared, engine, per_node=1, network_dtype="fp32")[0]
    # Of two ranks both sums are one addition; docs/distributed.md has four.
    assert (errors["gradient"], errors["loss"]) == (0.0, 0.0)
    assert errors["learned"] > 0


def test_16_bits_on_the_network_round_once(workers):
    errors = workers(2).run(two_legs.compared, "zero1", per_node=1, network_dtype="bf16")[0]
    assert 0.1 * BF16_ROUNDING < errors["gradient"] < errors["parameter"] < 1.5 * BF16_ROUNDING
    assert errors["loss"] < 1e-3


def test_16_bits_halve_the_gradients_bytes(workers):
    hierarchy = {"enabled": True, "ranks_per_node": 1, "network_dtype": "bf16"}
    figures = workers(2).run(counted_training.counted_step, "bf16_zero1", 2, hierarchy=hierarchy)[0]
    assert 4.0 <= figures["many_ranks"] <= 4.1
    assert figures["host_waits"] <= 2, figures["where"]


def test_nodes_are_blocks_of_hosts():
    assert _ranks_per_node(["a", "a", "b", "b"]) == 2
    for hosts in (["a", "b", "a", "b"], ["a", "a", "b"], ["a", "b", "b"]):
        with pytest.raises(ConfigError, match="equal blocks"):
            _ranks_per_node(hosts)


@pytest.mark.parametrize(
    ("stage", "hierarchy", "message"),
    [
        (3, {"enabled": True}, "for stages 1 and 2"),
        (1, {"enabled": True, "network_dtype": "fp16"}, "Input should be 'fp32' or 'bf16'"),
        (1, {"enabled": True, "ranks_per_node": 0}, "greater than or equal to 1"),
        (1, {"network_dtype": "bf16"}, "give true or false"),
    ],
)
def test_impossible_hierarchies_are_refused(stage, hierarchy, message):
    with pytest.raises(ConfigError, match=message):
        build_engine(None, None, {**ds_config(stage, "fp32"), "hierarchy": hierarchy}, None)
