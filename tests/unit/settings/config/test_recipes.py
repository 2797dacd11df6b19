import json
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import pytest

from megabert.foundation.errors import ConfigError
from megabert.settings.config.deepspeed import ENGINE_KEYS, derive_deepspeed
from megabert.settings.config.loading import load_run_config, phase_data, shipped_names, shipped_or_own

RECIPES_OF_FAMILIES = {
    "bert": ("bert_base", "demo", "speedrun"),
    "roberta": ("roberta_base",),
    "albert": ("albert_base",),
    "electra": ("electra_small",),
    "deberta": ("deberta_base",),
    "deberta-v3": ("deberta_v3_base", "deberta_v3_small"),
    "modernbert": (
        *("modernbert_base", "modernbert_large", "modernbert_1gpu", "cramming", "gpt_bert_style"),
        *("demo_modern", "english_small", "korean_small"),
    ),
}


@pytest.mark.parametrize("family", RECIPES_OF_FAMILIES)
def test_recipes_state_their_family(family):
    for name in RECIPES_OF_FAMILIES[family]:
        assert load_run_config(name).model.family == family, name


def test_family_has_its_usual_settings_and_what_is_stated_wins():
    model = load_run_config("debug", flags={"model": {"family": "albert", "embedding_size": 64}}).model
    assert (model.embedding_size, model.num_hidden_groups, model.hidden_act) == (64, 1, "gelu_new")
    with pytest.raises(ConfigError, match="num_hidden_groups=3 does not divide num_hidden_layers=2"):
        load_run_config("debug", flags={"model": {"num_hidden_groups": 3}})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pos_att_type": ["c2p"]}, r"goes with family=deberta, deberta-v2, deberta-v3, not bert"),
        ({"type_vocab_size": 0}, "type_vocab_size=0 goes with family=deberta, .*, not bert"),
        ({"position_biased_input": False}, "goes with family=deberta, deberta-v2, not bert"),
        ({"family": "deberta", "share_att_key": True}, "share_att_key=True goes with family=deberta-v2, deb"),
        ({"family": "deberta", "conv_kernel_size": 3}, "conv_kernel_size=3 goes with family=deberta-v2, not deberta"),
        ({"family": "deberta-v2", "conv_kernel_size": 2}, "conv_kernel_size=2 has no middle"),
        ({"family": "deberta", "embedding_size": 64}, "embedding_size=64 .* does not go with family=deberta"),
        ({"family": "deberta", "num_hidden_groups": 1}, "num_hidden_groups=1 does not go with family=deberta"),
        ({"family": "deberta", "pos_att_type": []}, "pos_att_type is empty"),
        ({"family": "deberta", "pos_att_type": ["c2p", "c2p"]}, "names one twice"),
        ({"family": "deberta", "pos_att_type": ["p2p"]}, "should be 'c2p' or 'p2c'"),
        ({"family": "deberta-v2", "position_buckets": 1}, "position_buckets=1 has no half"),
        ({"family": "deberta-v2", "max_relative_positions": 129}, "position_buckets=256: no .*take 130 or more"),
        ({"embedding_sharing": "shared"}, "embedding_sharing=shared goes with family=deberta-v3, not bert"),
        ({"family": "deberta-v3", "position_biased_input": True}, "goes with family=deberta, deberta-v2, not d"),
        ({"local_attention": 64}, "local_attention=64 goes with family=modernbert, not bert"),
        ({"family": "modernbert", "local_attention": 0}, "local_attention=0 cannot be halved.*such as 128"),
        ({"family": "modernbert", "local_attention": 63}, "local_attention=63 cannot be halved.*such as 128"),
        ({"family": "modernbert", "global_rope_theta": 0}, "global_rope_theta=0 is no base.*such as 160000"),
        ({"family": "modernbert", "local_rope_theta": float("inf")}, "local_rope_theta"),
        ({"family": "modernbert", "num_attention_heads": 128}, "makes heads 1 wide.*even width"),
        ({"family": "modernbert", "position_biased_input": True}, "goes with family=deberta, deberta-v2, not mod"),
        ({"family": "modernbert", "type_vocab_size": 2}, "type_vocab_size=2, but family=modernbert has no segments"),
        ({"family": "modernbert", "embedding_size": 64}, "does not go with family=modernbert"),
        ({"family": "modernbert", "max_position_embeddings": 256}, "is above model.max_position_embeddings=256"),
        ({"max_position_embeddings": 256}, r"phases\[1\].max_seq_length=512 is above model.*_embeddings=256"),
    ],
)
def test_relative_positions_that_do_not_fit_the_family_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        load_run_config("debug", flags={"model": settings})


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "fp8"])
@pytest.mark.parametrize("name", [name for name in shipped_names("engine") if name != "zero0"])
def test_engine_file_resolves_without_auto(name, precision):
    values = derive_deepspeed(name, precision=precision, max_grad_norm=1.0)
    assert values["zero_optimization"]["stage"] == int(name[-1])
    assert "auto" not in str(values)
    assert values["bf16"]["enabled"] == (precision in ("bf16", "fp8"))
    assert values["data_types"]["grad_accum_dtype"] == values["communication_data_type"] == "fp32"


def test_a_size_that_is_stated_prevails_over_the_presets():
    wider = load_run_config("bert_base", flags={"model": {"intermediate_size": 4096}}).model
    assert (wider.hidden_size, wider.intermediate_size) == (768, 4096)


@pytest.mark.parametrize(("name", "bases"), [("modernbert_base", [1e4, 1.6e5, 1.6e5]), ("cramming", [1.6e5])])
def test_phase_may_have_its_own_base_of_rotary_positions(name, bases):
    config = load_run_config(name)
    assert [config.model_in_phase(i).global_rope_theta for i in range(len(config.phases))] == bases
    assert config.model.global_rope_theta == 1.6e5


TILED = {"1": {"new_positions": "tile"}}
SHIFTED = {"position_offset": "random"}
WEIGHED = {"masked_lm_range": [0.1, 0.9], "masked_lm_weight": "inverse_share"}


@pytest.mark.parametrize(
    ("family", "phases", "message"),
    [
        ("modernbert", {"0": {"global_rope_theta": 0}}, r"0.global_rope_theta: Input should be .* than 1 \(found 0\)"),
        (
            *("bert", {"0": {"global_rope_theta": 1e4}}),
            r"phases\[0\].global_rope_theta=10000 goes with model.family=modernbert, not bert.*Leave it out",
        ),
        (
            *("electra", {"0": WEIGHED}),
            r"phases\[0\]\.masked_lm_weight=inverse_share .* the generator of electra is thrown away\. Leave",
        ),
        ("modernbert", TILED, r"phases\[1\].new_positions=tile fills rows of a table .*=modernbert has none"),
        ("deberta-v2", TILED, r"model.family=deberta-v2 has none here. Leave it out, or set it to keep"),
        ("bert", {"0": {"max_seq_length": 512}, **TILED}, "no new row: max_seq_length=512 is not above 512"),
        ("bert", {"0": {"new_positions": "tile"}, **TILED}, r"phases\[0\].*this phase is the first one"),
        ("bert", {"0": SHIFTED, **TILED}, "trained by its position_offset=random"),
        ("modernbert", {"0": SHIFTED}, r"phases\[0\].position_offset=random shifts positions in a table, .* has none"),
        ("bert", {"1": SHIFTED}, r"phases\[1\].*has no room: max_seq_length=512 is model.max_position_embeddings"),
    ],
)
def test_phase_that_does_not_fit_the_model_is_refused(family, phases, message):
    with pytest.raises(ConfigError, match=message):
        load_run_config("debug", flags={"model": {"family": family}, "phases": phases})


@pytest.mark.parametrize(
    ("name", "new_positions"), [("bert_base_1gpu", "tile"), ("bert_base", "keep"), ("bert_large", "keep")]
)
def test_recipes_with_the_schedule_of_others_enter_length_512_as_they_did(name, new_positions):
    assert [phase.new_positions for phase in load_run_config(name).phases] == ["keep", new_positions]


@pytest.mark.parametrize("family", ["bert", "roberta", "albert", "electra"])
def test_families_with_a_table_of_positions_may_tile_it(family):
    config = load_run_config("debug", flags={"model": {"family": family}, "phases": TILED})
    assert [phase.new_positions for phase in config.phases] == ["keep", "tile"]


def test_rates_and_batches_of_gpt_bert_continue_from_phase_to_phase():
    phases = load_run_config("gpt_bert_style").phases
    for earlier, later in pairwise(phases):
        tokens = [earlier.global_batch_size * earlier.max_seq_length, later.initial_batch_size * later.max_seq_length]
        assert tokens[0] == pytest.approx(tokens[1], rel=1e-3)
        assert earlier.masked_lm_prob > later.masked_lm_prob
    assert [phase.final_learning_rate for phase in phases[:4]] == [phase.learning_rate for phase in phases[1:5]]
    assert sum(phase.num_steps for phase in phases) == 15_625


def test_unknown_recipe_and_engine_name_the_nearest():
    with pytest.raises(ConfigError, match="did you mean debug"):
        load_run_config("debugg")
    with pytest.raises(ConfigError, match="did you mean zero1"):
        shipped_or_own("engine", "zerro1")


def test_budget_below_one_instance_is_refused():
    with pytest.raises(ConfigError, match=r"micro_batch_tokens=300 is below phases\[1\].max_seq_length=512"):
        load_run_config("debug", flags={"micro_batch_tokens": 300})


def test_missing_data_names_the_command_that_makes_it():
    config = load_run_config("debug")
    with pytest.raises(ConfigError, match="megabert-data build"):
        phase_data(config, config.phases[0])


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ('{"zero_optimization": {"stage": 1}, "gradient_cliping": 1}', "unknown key; did you mean gradient_clipping"),
        ('{"zero_optimization": {"stag": 1}}', "zero_optimization.stag: unknown key; did you mean stage"),
        ('{"gradient_clipping": 0.5}', "gradient_clipping=0.5 contradicts 1.0 .the recipe's optimizer.max_grad_norm"),
        ('{"bf16": {"enabled": true}}', "bf16.enabled=true contradicts false .the recipe's precision"),
        ('{"zero_optimization": {"stage": "auto"}}', "no recipe field fills it in"),
        ('{"zero_optimization": "auto"}', 'zero_optimization="auto": Input should be a valid dictionary'),
        ('{"zero_optimization": {"stage": 1, "round_robin_gradients": true}}', "round_robin_gradients"),
        ('{"zero_optimization": {"stage": 4}}', "zero_optimization.stage=4: Input should be less than or equal to 3"),
        ('{"zero_optimization": 3}', "zero_optimization=3: Input should be a valid dictionary"),
        ('{"zero_optimization": {"stage": 1, "stage": 2}}', "stage is there twice"),
        ('{"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}}', "offload is not supported"),
        ("[]", "not a mapping"),
        ("{", "is not valid JSON"),
    ],
)
def test_bad_engine_file_is_refused(tmp_path, engine, message):
    path = tmp_path / "engine.json"
    path.write_text(engine)
    with pytest.raises(ConfigError, match=message):
        derive_deepspeed(str(path), precision="fp32", max_grad_norm=1.0)


@pytest.mark.parametrize(
    ("value", "of_type"), [("no", str), (True, bool), ([1], None), (None, None), (-2, None), (1e400, None)]
)
def test_no_key_of_an_engine_file_takes_a_value_of_another_type(value, of_type, tmp_path):
    path = tmp_path / "engine.json"
    for section, types in ENGINE_KEYS.items():
        for key, kind in types.items():
            if kind not in (Any, of_type):
                path.write_text(json.dumps({section: {key: value}} if section else {key: value}))
                with pytest.raises(ConfigError, match=key):
                    derive_deepspeed(str(path), precision="fp32", max_grad_norm=1.0)


def test_an_engine_file_may_write_whole_numbers_with_an_exponent(tmp_path):
    (tmp_path / "engine.json").write_text('{"zero_optimization": {"stage": 1, "reduce_bucket_size": 5e8}}')
    values = derive_deepspeed(str(tmp_path / "engine.json"), precision="fp32", max_grad_norm=1.0)
    assert values["zero_optimization"]["reduce_bucket_size"] == 500_000_000


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_fewer_bits_on_stage_0_name_the_remedy(precision):
    with pytest.raises(ConfigError, match=f"cannot train in {precision}.*Use stage 1"):
        derive_deepspeed("zero0", precision=precision, max_grad_norm=1.0)


@pytest.mark.parametrize(("flags", "is_fit"), [({}, False), ({"model": {"family": "roberta"}}, True)])
def test_source_of_another_family_is_refused(flags, is_fit):
    message = "init_from=folder: its model is of the family roberta, recipe debug trains"
    with nullcontext() if is_fit else pytest.raises(ConfigError, match=message):
        load_run_config("debug", flags={"init_from": "folder", **flags}, model_of=lambda _: {"family": "roberta"})


@pytest.mark.parametrize("model", ["big", [3], 5])
@pytest.mark.parametrize("source", [{}, {"init_from": "folder"}])
def test_model_that_is_no_mapping_is_named(model, source):
    with pytest.raises(ConfigError, match=r"\n  model: "):
        load_run_config("debug", flags={**source, "model": model}, model_of=lambda _: {})


@pytest.mark.parametrize(
    ("family", "remedy"),
    [("modernbert", "add --model.max-position-embeddings 512: rotary"), ("roberta", "or take weights with more")],
)
def test_phase_above_the_positions_of_the_source_names_the_source(family, remedy):
    def load(**flags):
        source = {"family": family, "max_position_embeddings": 128}
        flags = {"init_from": "folder", "model": {"family": family, **flags}}
        return load_run_config("debug", flags=flags, model_of=lambda _: source)

    with pytest.raises(ConfigError) as error:
        load()
    headline, problem = str(error.value).splitlines()
    assert headline == "Recipe debug from the weights of folder contradicts itself:"
    assert "phases[1].max_seq_length=512 is above the 128 positions of init_from=folder" in problem
    assert "set --phases.1.max-seq-length 128" in problem
    assert remedy in problem
    assert load(max_position_embeddings=512).model.max_position_embeddings == 512
    with pytest.raises(ConfigError, match=r"is above model.max_position_embeddings=256"):
        load(max_position_embeddings=256)


@pytest.mark.parametrize(
    ("name", "variant"), [("bert_base", "apex"), ("bert_large", "apex"), ("albert_base", "paper"), ("debug", "nvlamb")]
)
def test_recipe_names_the_rule_of_lamb_of_the_results_that_it_quotes(name, variant):
    assert load_run_config(name).optimizer.lamb_variant == variant
