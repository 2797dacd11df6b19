"""Measured rates: collectives of the ranks that were measured, and of others; and what they refuse."""

import json

import pytest
from support.measured_rates import rates, speeds

from megabert.foundation.errors import ConfigError
from megabert.foundation.json_files import to_json
from megabert.tooling.measurements.measured import read_measured


def test_rates_survive_a_file(tmp_path):
    path = tmp_path / "proof.json"
    path.write_text(json.dumps({"fit": True, "findings": [], "measured": to_json(rates())}))
    assert read_measured(path) == rates()


@pytest.mark.parametrize("measured", [None, {"device": "cpu"}, {**to_json(rates()), "copy_gb_s": -1.0}])
def test_file_without_rates_is_refused_with_the_command_that_writes_one(tmp_path, measured):
    path = tmp_path / "proof.json"
    path.write_text(json.dumps({"fit": False, "findings": [], "measured": measured}))
    with pytest.raises(ConfigError, match="doctor --prove --save FILE"):
        read_measured(path)


def test_ranks_that_were_measured_have_their_own_line():
    assert rates().collective("all_gather", 2, 2) == (0.4, 4e-9)
    assert rates().collective("all_gather", 1, 1) == (0.0, 0.0)


def test_other_ranks_are_a_ring_inside_each_node_and_one_between_them():
    message_s, byte_s = rates().collective("reduce_scatter", 4, 8)
    # Inside: half of the tensor passed each link, now 7/8; four nodes after each other. Between: a half, now 3/4.
    assert message_s == pytest.approx(0.1 * 4 * 7 + 0.2 * 3)
    assert byte_s == pytest.approx(1e-9 * (7 / 8) / (1 / 2) + 6e-9 / 8 * (3 / 4) / (1 / 2))


def test_one_node_says_nothing_about_a_network():
    alone = rates(nodes=1, collectives=speeds(node=(0.1, 1e-9)))
    assert alone.collective("all_reduce", 1, 2) == (0.1, 1e-9)
    with pytest.raises(ConfigError, match=r"1 node\(s\) x 2 rank\(s\) .* nothing about --nodes 4.*several nodes"):
        alone.collective("all_reduce", 4, 2)
    single = rates(nodes=1, ranks_per_node=1, collectives=())
    with pytest.raises(ConfigError, match="nothing about --gpus 2"):
        single.collective("all_reduce", 1, 2)


def test_other_models_lengths_and_precisions_are_refused_with_both_values():
    rates().refuse_other_model({"hidden_size": 128, "num_hidden_layers": 12}, "fp32")  # layers are counted apart
    with pytest.raises(ConfigError, match="hidden_size: 128 was measured, 256 is asked for"):
        rates().refuse_other_model({"hidden_size": 256}, "fp32")
    with pytest.raises(ConfigError, match="precision: 'fp32' was measured, 'bf16'"):
        rates().refuse_other_model({"hidden_size": 128}, "bf16")
    with pytest.raises(ConfigError, match="length 512 was not measured, only 128"):
        rates().phase(512)


def test_a_micro_step_is_its_layers_and_its_ends():
    assert rates().phase(128).micro_step_s(4) == 4 * 0.5 + 0.25
