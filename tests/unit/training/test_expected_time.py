"""The time of a run on a CPU: FLOPs of its steps over a measured rate, and a warning if it is hopeless."""

from megabert.settings.config.loading import load_run_config
from megabert.tokens.shards.folder import InstanceStatistics
from megabert.training import expected_time
from megabert.training.expected_time import cpu_seconds, describe_cpu_time, step_flops

FULL = {
    length: InstanceStatistics(
        rows=1000, tokens=1000 * length, masked_tokens=150 * length, max_seq_length=length, max_masked=length // 6
    )
    for length in (128, 512)
}


def config_of(recipe):
    return load_run_config(recipe, [], {"model": {"vocab_size": 30_522}})


def test_seconds_are_flops_over_the_measured_rate(monkeypatch):
    config, data = config_of("bert_base_1gpu"), [FULL[128], FULL[512]]
    monkeypatch.setattr(expected_time, "_products_per_s", lambda model: 1e11)
    expected = [step_flops(config, index, data[index]) / (expected_time.CPU_SHARE * 1e11) for index in (0, 1)]
    assert cpu_seconds(config, data) == expected
    assert cpu_seconds(config, data, ranks=2) == [seconds / 2 for seconds in expected]


def test_flops_are_those_of_the_mean_masked_share():
    def flops(**masks):
        config = load_run_config("debug", [], {"model": {"vocab_size": 30_522}, "phases": {"0": masks}})
        return step_flops(config, 0, FULL[128])

    half = flops(masked_lm_prob=0.5)
    assert flops(masked_lm_range=[0.1, 0.9]) == flops(masked_lm_prob=0.4, final_masked_lm_prob=0.6) == half
    assert flops() < half, "the shards mask 15%"


def test_measured_rate_is_that_of_some_cpu():
    assert 1e8 < expected_time._products_per_s(config_of("debug").model) < 1e14


def test_hopeless_run_is_warned_of_with_a_remedy():
    text = describe_cpu_time(config_of("bert_base_1gpu"), [3600.0, 60.0], [24 * 5, 0])
    assert text.startswith("WARNING: about 5.0 days for 120 steps")
    assert "up to 60.0 min each" in text
    assert "--recipe demo" in text


def test_short_run_is_only_told():
    text = describe_cpu_time(config_of("debug"), [1.0, 2.0], [1300, 60])
    assert text.startswith("expected: about 23.7 min for 1,360 steps")
