from pathlib import Path

import pytest

from megabert.foundation.errors import ConfigError
from megabert.settings.config.fields import field_table
from megabert.settings.config.finetune import FinetuneConfig
from megabert.settings.config.loading import differences, merge_layers, to_dict, to_yaml
from megabert.settings.config.run import FREE_ON_RESUME, RunConfig

PHASE = {"steps": 10, "global_batch_size": 4, "learning_rate": 1e-3}


def test_later_layers_win():
    config = merge_layers(RunConfig, {"phases": [PHASE], "seed": 1}, {"seed": 2}, {"seed": 3})
    assert config.seed == 3


def test_flag_changes_one_element_of_a_list():
    config = merge_layers(RunConfig, {"phases": [PHASE, PHASE]}, {"phases": {"1": {"steps": 7}}})
    assert [phase.steps for phase in config.phases] == [10, 7]


def test_flag_for_an_absent_element_is_refused():
    with pytest.raises(ConfigError, match=r"phases: there is no element '2'; it has 1"):
        merge_layers(RunConfig, {"phases": [PHASE]}, {"phases": {"2": {"steps": 7}}})


def test_all_problems_are_named_at_once_with_the_nearest_key():
    phase = {**PHASE, "stepz": 3, "learning_rate": -1}
    values = {"phases": [phase], "optimizer": {"nam": "lamb"}, "seeed": 1, "lerning_rate": 3}
    with pytest.raises(ConfigError) as error:
        merge_layers(RunConfig, values)
    text = str(error.value)
    assert "5 problem(s)" in text
    assert "phases.0.stepz: unknown field; did you mean steps?" in text
    assert "phases.0.learning_rate: Input should be greater than 0 (found -1)" in text
    assert "optimizer.nam: unknown field; did you mean name?" in text
    assert "lerning_rate: unknown field; did you mean phases.0.learning_rate?" in text
    assert "seeed: unknown field; did you mean seed? (flags that are no fields, such as --run-dir," in text


def test_field_of_two_types_is_one_problem_under_its_own_name():
    with pytest.raises(ConfigError) as error:
        merge_layers(RunConfig, {"phases": [PHASE], "micro_batch_tokens": "all"})
    assert str(error.value).splitlines()[1:] == [
        "  micro_batch_tokens: Input should be a valid integer or 'auto' (found 'all')"
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [("[1, 2]", "holds a list, not a mapping"), ("a: [", "is not valid YAML"), (None, "cannot be read")],
)
def test_unreadable_file_is_named(tmp_path: Path, content, message):
    path = tmp_path / "x.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=message) as error:
        merge_layers(RunConfig, path)
    assert str(path) in str(error.value)


def test_a_value_in_place_of_a_list_is_told_its_form():
    with pytest.raises(ConfigError, match=r"model.pos_att_type: is a list; write it in brackets, \[c2p\]"):
        merge_layers(RunConfig, {"phases": [PHASE], "model": {"pos_att_type": "c2p"}})


def test_a_value_that_is_missing_is_named_with_its_flag():
    with pytest.raises(ConfigError, match=r"  data: is missing; set it \(as a flag: --data\)"):
        merge_layers(FinetuneConfig, {})


def test_differences_name_leaves():
    old = to_dict(merge_layers(RunConfig, {"phases": [PHASE]}))
    new = to_dict(merge_layers(RunConfig, {"phases": [{**PHASE, "steps": 11}], "engine": "zero2"}))
    assert differences(old, new) == {"phases.0.steps": (10, 11), "engine": ("auto", "zero2")}


def test_every_field_that_is_free_on_resume_is_a_field():
    paths = [row.path for row in field_table(RunConfig)]
    for free in FREE_ON_RESUME:
        assert [path for path in paths if f"{path}.".startswith(f"{free.replace('*', 'N')}.")], free


def test_every_field_is_documented():
    undocumented = [row.path for row in field_table(RunConfig) if not row.about]
    assert undocumented == []


def test_every_text_of_a_saved_configuration_reads_back_equal(tmp_path: Path):
    own = {"name": "1e5", "data": {"path": "0100"}, "model": {"preset": "tiny"}}
    config = merge_layers(RunConfig, {"phases": [PHASE], **own})
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert merge_layers(RunConfig, tmp_path / "config.yaml") == config


def test_a_bad_flag_is_not_blamed_on_the_file_that_it_overrides(tmp_path: Path):
    (tmp_path / "own.yaml").write_text("phases: [{steps: 5, global_batch_size: 4, learning_rate: -1}]")
    with pytest.raises(ConfigError) as error:
        merge_layers(RunConfig, tmp_path / "own.yaml", {"phases": {"0": {"steps": -5}}})
    by_flag, by_file = sorted(str(error.value).splitlines()[1:], reverse=True)
    assert by_flag == "  phases.0.steps: Input should be greater than or equal to 1 (found -5)"
    assert by_file.endswith(f"(found -1), in {tmp_path / 'own.yaml'}")


def test_a_missing_field_is_not_blamed_on_the_layer_whose_list_is_replaced(tmp_path: Path):
    (tmp_path / "recipe.yaml").write_text("phases: [{steps: 5, global_batch_size: 4, learning_rate: 1}]")
    (tmp_path / "own.yaml").write_text("phases: [{steps: 5, global_batch_size: 4}]")
    with pytest.raises(ConfigError, match=rf"phases\.0\.learning_rate: is missing; .*, in {tmp_path / 'own.yaml'}$"):
        merge_layers(RunConfig, tmp_path / "recipe.yaml", tmp_path / "own.yaml")


@pytest.mark.parametrize("text", ["a\0b", "\udcff"])
def test_text_that_nothing_can_be_named_by_is_refused(text):
    with pytest.raises(ConfigError, match=r"data\.path: has a character that is no text"):
        merge_layers(RunConfig, {"phases": [PHASE], "data": {"path": text}})


def test_a_later_decay_takes_no_power_from_an_earlier_one():
    recipe = {"phases": [{**PHASE, "decay_power": 0.5}]}
    assert merge_layers(RunConfig, recipe, {"phases": {"0": {"decay": "cosine"}}}).phases[0].decay_power is None
    assert merge_layers(RunConfig, recipe, {"phases": {"0": {"decay": "polynomial"}}}).phases[0].decay_power is None
    with pytest.raises(ConfigError, match=r"decay_power=0\.5 goes with decay=polynomial, not cosine"):
        merge_layers(RunConfig, recipe, {"phases": {"0": {"decay": "cosine", "decay_power": 0.5}}})


def test_clipping_goes_with_the_optimizer_that_a_layer_names():
    def optimizer(*layers):
        return merge_layers(RunConfig, *({"phases": [PHASE], "optimizer": layer} for layer in layers)).optimizer

    assert optimizer({"name": "lamb", "max_grad_norm": 0.5}, {"name": "muon"}).max_grad_norm == 0
    assert optimizer({"name": "muon", "max_grad_norm": 0.0}, {"name": "adamw"}).max_grad_norm == 1
    clipped = {"name": "stable_adamw", "max_grad_norm": 2.0, "clip_both": True}
    assert not optimizer(clipped, {"name": "lamb"}).clip_both
    both = {"name": "stable_adamw", "clip_both": True}
    assert optimizer({"name": "adamw", "max_grad_norm": 0.5}, both).max_grad_norm == 0.5
    assert optimizer(clipped, {"name": "muon"}).max_grad_norm == 2
    assert optimizer({"name": "lamb", "max_grad_norm": 0.5}, {"name": "adamw"}).max_grad_norm == 0.5
    assert optimizer({"max_grad_norm": 0.5}, {"name": "adamw", "max_grad_norm": 3.0}).max_grad_norm == 3
