import math

import pytest

from megabert.foundation.errors import ConfigError
from megabert.settings.config.loading import merge_layers
from megabert.settings.config.phase import PhaseConfig
from megabert.settings.config.run import RunConfig


def phase(**options) -> PhaseConfig:
    return PhaseConfig(**{"steps": 100, "global_batch_size": 512, "learning_rate": 1e-3, **options})


@pytest.mark.parametrize(
    ("first", "last", "ramp"), [(64, 512, 30), (1, 2, 7), (3, 1000, 90), (5, 17, 1), (5, 17, 12), (2, 9, 7)]
)
def test_batches_grow_in_a_line_by_whole_instances_which_are_summed(first, last, ramp):
    growing = phase(steps=100, initial_batch_size=first, global_batch_size=last, batch_warmup_steps=ramp)
    sizes = [growing.batch_size(batch) for batch in range(100)]
    assert sizes == [first + (last - first) * batch // ramp for batch in range(ramp)] + [last] * (100 - ramp)
    assert growing.num_instances == sum(sizes)
    assert [growing.instances_of(batches) for batches in range(101)] == [sum(sizes[:k]) for k in range(101)]


def test_a_ramp_of_any_length_is_summed_at_once():
    endless = phase(steps=10**9, initial_batch_size=1, batch_warmup_steps=10**9)
    assert endless.num_instances == 10**9 + (510 * (10**9 - 1) + math.gcd(511, 10**9) - 1) // 2
    resolved = phase(steps=None, tokens=10**13, initial_batch_size=1, batch_warmup_tokens=10**13)
    assert resolved.with_steps(rows=1, tokens=100).num_steps == pytest.approx(10**11 / 256.5, rel=1e-2)


@pytest.mark.parametrize("options", [{"steps": None, "tokens": 10**15}, {"batch_warmup_tokens": 10**15}])
def test_tokens_of_more_steps_than_a_phase_may_have_are_refused(options):
    growing = {"initial_batch_size": 1} if "batch_warmup_tokens" in options else {}
    with pytest.raises(ConfigError, match=r"tokens=1,000,000,000,000,000 take .* 1,000,000,000 are allowed"):
        phase(**options, **growing).with_steps(rows=1, tokens=100)


def test_phase_that_ends_within_its_ramp_counts_what_it_has():
    assert phase(steps=2, initial_batch_size=64, batch_warmup_steps=30).num_instances == 64 + 64 + 448 // 30


@pytest.mark.parametrize("tokens", [1, 6_400, 60_000, 99_999, 5_000_000])
@pytest.mark.parametrize("ramp", [{}, {"initial_batch_size": 64, "batch_warmup_steps": 30}])
def test_tokens_become_the_fewest_steps_that_hold_them(tokens, ramp):
    resolved = phase(steps=None, tokens=tokens, **ramp).with_steps(rows=1000, tokens=90_500)
    assert resolved.tokens is None
    assert resolved.num_instances * 90.5 >= tokens
    assert resolved.instances_of(resolved.num_steps - 1) * 90.5 < tokens


def test_ramp_in_tokens_is_a_ramp_in_batches():
    resolved = phase(initial_batch_size=64, batch_warmup_tokens=1_000_000).with_steps(rows=10, tokens=1000)
    assert (resolved.batch_warmup_steps, resolved.batch_warmup_tokens) == (35, None)  # of 288 x 100 tokens on average
    assert resolved.instances_of(35) * 100 == pytest.approx(1_000_000, rel=0.02)


@pytest.mark.parametrize(("written", "tokens"), [("50e9", 50 * 10**9), ("1.7E12", 17 * 10**11), ("7", 7)])
def test_tokens_may_be_written_with_an_exponent(written, tokens, tmp_path):
    (tmp_path / "own.yaml").write_text(f"phases: [{{tokens: {written}, global_batch_size: 1, learning_rate: 1}}]")
    assert merge_layers(RunConfig, tmp_path / "own.yaml").phases[0].tokens == tokens


@pytest.mark.parametrize("written", ["50e9", 1.5, 2e3, True, math.nan, 10**16, 10**400, -5, 0])
def test_tokens_are_a_whole_number(written):
    values = {"tokens": written, "global_batch_size": 1, "learning_rate": 1.0}
    with pytest.raises(ConfigError, match=r"phases\.0\.tokens"):
        merge_layers(RunConfig, {"phases": [values]})


def test_a_phase_in_steps_stays_as_it_is():
    assert phase().with_steps(rows=3, tokens=7) == phase()


def test_a_later_layer_may_name_tokens_where_an_earlier_one_names_steps_and_the_other_way_round():
    recipe = {"phases": [{"steps": 9, "global_batch_size": 1, "learning_rate": 1.0}]}
    in_tokens = merge_layers(RunConfig, recipe, {"phases": {"0": {"tokens": 500}}})
    assert (in_tokens.phases[0].steps, in_tokens.phases[0].tokens) == (None, 500)
    in_steps = merge_layers(RunConfig, recipe, {"phases": {"0": {"tokens": 500}}}, {"phases": {"0": {"steps": 7}}})
    assert (in_steps.phases[0].steps, in_steps.phases[0].tokens) == (7, None)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"steps": None}, "steps=None and tokens=None; a phase has one of the two"),
        ({"tokens": 4}, "steps=100 and tokens=4; a phase has one of the two"),
        ({"initial_batch_size": 4}, "a batch that grows has the first and one of the others"),
        ({"batch_warmup_tokens": 4}, "a batch that grows has the first and one of the others"),
        ({"initial_batch_size": 512, "batch_warmup_steps": 4}, "is not below global_batch_size=512"),
        ({"masked_lm_range": (0.1, 0.6), "masked_lm_prob": 0.3}, "leave out one or the other"),
        ({"masked_lm_range": (0.6, 0.2)}, "begins with the greater share; name the smaller one first"),
        ({"masked_lm_weight": "inverse_share"}, "needs masked_lm_range"),
        ({"final_masked_lm_prob": 0.3}, "name masked_lm_prob as well"),
        ({"mask_actions": (0.8, 0.1, 0.3)}, "add up to 1.2; name three shares that add up to 1"),
        ({"mixture": {"a": 0.0}}, "reads no source; give one a share above 0"),
        ({"mixture": {"a": 1.0}, "temperature": 0.5}, "a phase has one of the two at most"),
    ],
)
def test_settings_that_contradict_themselves_are_refused(options, named):
    values = {"steps": 100, "global_batch_size": 512, "learning_rate": 1e-3, **options}
    with pytest.raises(ConfigError, match=named):
        merge_layers(RunConfig, {"phases": [values]})
