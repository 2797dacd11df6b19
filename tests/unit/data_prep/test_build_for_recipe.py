"""``--for RECIPE``: the settings of a build that a recipe states."""

import pytest

from data_prep.cli import PROGRAM
from data_prep.commands.options import make_config
from data_prep.config.build import BuildConfig
from megabert.settings.config.fields import field_table
from megabert.settings.config.loading import load_run_config, read_yaml, shipped_names, shipped_or_own, to_dict
from megabert.settings.config.shards import ShardsConfig


def config_of(*words: str) -> BuildConfig:
    _, options = PROGRAM.parse("build", ["--input", "texts/*.txt", "--output", "data", *words])
    return make_config(options)


@pytest.mark.parametrize("name", shipped_names("recipe"))
def test_a_build_for_a_recipe_has_the_settings_that_it_states(name):
    stated = read_yaml(shipped_or_own("recipe", name))["shards"]
    config = to_dict(config_of("--for", name))
    assert {field: config[field] for field in stated} == stated
    lengths = [phase.max_seq_length for phase in load_run_config(name).phases]
    assert config == to_dict(config_of()) | stated | {
        "lengths": sorted(set(lengths)),
        "dupe_factor": config["dupe_factor"],
    }


def test_flags_override_files_and_files_the_recipe(tmp_path):
    file = tmp_path / "build.yaml"
    file.write_text("objective: nsp\ndupe_factor: 3\n", encoding="utf-8")
    words = ("--for", "roberta_base", "--config", str(file), "--dupe-factor", "2", "--lengths", "64")
    config = config_of(*words)
    assert (config.pieces, config.objective, config.dupe_factor, config.lengths) == ("byte_bpe", "nsp", 2, (64,))


def test_a_recipe_may_be_a_file(tmp_path):
    file = tmp_path / "mine.yaml"
    phase = "{steps: 1, global_batch_size: 1, learning_rate: 1.0, max_seq_length: %d}"
    phases = f"phases: [{phase % 256}, {phase % 64}, {phase % 256}]\n"
    file.write_text(f"shards: {{min_tokens: [0, 200], masked_lm_prob: 0.4}}\n{phases}", encoding="utf-8")
    config = config_of("--for", str(file))
    assert (config.lengths, config.min_tokens, config.masked_lm_prob) == ((64, 256), (0, 200), 0.4)


def test_what_a_recipe_can_state_are_fields_of_a_build_with_the_same_choices_and_bounds():
    of_build = {row.path: row for row in field_table(BuildConfig)}
    for row in field_table(ShardsConfig):
        assert row.choices == of_build[row.path].choices
        assert row.kinds == of_build[row.path].kinds
    assert load_run_config("debug").shards == ShardsConfig()
