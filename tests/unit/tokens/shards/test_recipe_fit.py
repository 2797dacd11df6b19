"""Shards that do not fit the recipe are refused, and the command of the message builds some that do."""

import itertools
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from data_prep.cli import PROGRAM as DATA_PROGRAM
from data_prep.cli import main as build
from data_prep.commands.options import make_config
from megabert.foundation.errors import ConfigError, DataError
from megabert.settings.config.loading import build_fields, load_run_config, shipped_names
from megabert.settings.config.shards import PER_LENGTH
from megabert.tokens.shards.recipe_fit import build_command, refuse_unfit_shards
from megabert.tokens.shards.shard_set import ShardSet
from megabert.training.run.start import open_inputs

ROOT = Path(__file__).parents[4]
RECIPE = """\
model: {preset: tiny}
shards: {%s}
phases:
  - {max_seq_length: 32, steps: 2, global_batch_size: 4, learning_rate: 0.001}
  - {max_seq_length: 64, steps: 2, global_batch_size: 4, learning_rate: 0.001}
micro_batch_tokens: 256
"""
BUILT = {"vocab-size": "600", "lengths": "32 64", "dupe-factor": "1", "validation-share": "0.2", "language": "en"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A small build with static masks, next sentences, and 600 cased pieces."""
    folder = tmp_path_factory.mktemp("recipe_fit")
    corpus = ROOT / "examples" / "corpus" / "public_domain.jsonl"
    lines = corpus.read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "texts.jsonl").write_text("".join(itertools.islice(lines, 0, None, 20)), encoding="utf-8")
    words = [word for name, value in BUILT.items() for word in (f"--{name}", *value.split())]
    inputs = ["--input", str(folder / "texts.jsonl"), "--output", str(folder / "data")]
    assert build(["build", *inputs, "--workers", "1", *words]) == 0
    return folder / "data"


@pytest.fixture
def dry_run(megabert):
    """Return a function that plans a run and returns what it said."""

    def plan(recipe: Path, data: Path, *flags: str, code: int = 0) -> str:
        words = ["--recipe", recipe, "--data.path", data, "--run-dir", recipe.parent / "run"]
        return megabert("pretrain", "--dry-run", *words, *flags, code=code).err

    return plan


@pytest.mark.parametrize(
    ("stated", "differences"),
    [
        (
            "masking: dynamic, dupe_factor: 2",
            ["masking: static in the shards, dynamic wanted", "dupe_factor: 1 in the shards, 2 wanted"],
        ),
        (
            "objective: none, min_tokens: [8, 0]",
            ["objective: nsp in the shards, none wanted", "min_tokens: 0 in the shards, 8 wanted"],
        ),
        (
            "masked_lm_prob: 0.4, mask_unit: span",
            ["mask_unit: token in the shards, span wanted", "masked_lm_prob: 0.15 in the shards, 0.4 wanted"],
        ),
        ("max_predictions_per_seq: [13, 10]", ["max_predictions_per_seq: 5 in the shards, 13 wanted"]),
        (
            "vocab_size: 500, uncased: true",
            ["vocab_size: 600 in the shards, 500 wanted", "uncased: false in the shards, true wanted"],
        ),
    ],
)
def test_mismatch_is_refused_with_both_values_and_command(stated, differences, data, tmp_path, dry_run, megabert_data):
    recipe = tmp_path / "small.yaml"
    recipe.write_text(RECIPE % stated, encoding="utf-8")
    here = tmp_path / "data"
    here.symlink_to(data)  # the command builds next to the folder that the run was given
    message = dry_run(recipe, here, code=3)
    for line in differences:
        assert f"  {line}\n" in message
    # The flags of the message take the shards as they are.
    flags = re.search("Or train on these shards: (.*)", message)[1]
    dry_run(recipe, here, *shlex.split(flags))
    # The command builds others, which fit.
    command = shlex.split(re.search("Build shards for it: megabert-data (.*)", message)[1])
    megabert_data(*command, "--workers", "1")
    dry_run(recipe, Path(f"{here}-small"))


def test_a_length_that_was_not_built_is_refused_with_a_command_that_builds_it(data, tmp_path, dry_run):
    recipe = tmp_path / "small.yaml"
    recipe.write_text(RECIPE % "", encoding="utf-8")
    message = dry_run(recipe, data, "--phases.1.max-seq-length", "48", code=3)
    assert "phases[1].max_seq_length=48" in message
    assert "has shards of 32, 64." in message
    assert "Build all of them: megabert-data build --lengths 32 48 --pieces wordpiece --vocab-size 600" in message


def test_what_a_recipe_leaves_out_is_not_compared_nor_are_shards_without_a_record(data, shard_folder):
    config = load_run_config("debug", flags={"data": {"path": str(data)}})
    shards = ShardSet.open(data / "instances" / "32")
    refuse_unfit_shards(config, [[shards], [shards]])
    other = ShardSet.open(shard_folder)  # of no build: it has no configuration
    bert = load_run_config("bert_base_1gpu")
    refuse_unfit_shards(bert, [[other], [other]])
    sop = replace(bert, shards=replace(bert.shards, objective="sop"))
    with pytest.raises(DataError, match="objective: nsp in the shards, sop wanted"):
        refuse_unfit_shards(sop, [[other], [other]])


def test_the_vocabulary_of_a_given_tokenizer_is_not_compared(data):
    shards = ShardSet.open(data / "instances" / "32")
    config = load_run_config("debug", flags={"shards": {"vocab_size": 30522}})
    with pytest.raises(DataError, match="vocab_size: 600 in the shards, 30522 wanted"):
        refuse_unfit_shards(config, [[shards], [shards]])
    shards.manifest.config["tokenizer"] = "models/published"
    refuse_unfit_shards(config, [[shards], [shards]])
    assert "--tokenizer models/published" in build_command(config, shards.folder, shards.manifest)
    assert "vocab" not in build_command(config, shards.folder, shards.manifest)


def test_command_of_a_source_names_its_folder(data, tmp_path):
    """Every source that does not fit is built again in a folder of its own."""
    config = load_run_config("debug", flags={"data": {"sources": {"wiki": str(data), "web": "data/web"}}})
    shards = ShardSet.open(data / "instances" / "32")
    assert build_command(config, shards.folder, shards.manifest).endswith(f"--output {data}-debug")
    for url, named in (("s3://bucket/wiki", "s3://bucket/wiki"), ("https://host/wiki", "wiki")):
        (tmp_path / "origin.json").write_text(json.dumps({"url": f"{url}/instances/32"}))
        assert build_command(config, tmp_path, shards.manifest).endswith(f" --output {named}-debug")


def test_command_names_the_model_that_identified_the_languages(data):
    shards = ShardSet.open(data / "instances" / "32")
    manifest = shards.manifest
    config = load_run_config("debug")
    manifest.config["language_model"] = "lid.176.bin"  # of the rule on languages, which the command leaves out
    assert "language-model" not in build_command(config, shards.folder, manifest)
    manifest.config["language"] = "auto"
    assert "--language auto" in build_command(config, shards.folder, manifest)
    assert "--language-model lid.176.bin" in build_command(config, shards.folder, manifest)


@pytest.mark.parametrize(
    ("language", "own", "is_identified"),
    [("en", ["de", "auto"], True), ("en", [None, "auto"], True), ("auto", ["de", "ko"], False), ("de", [None], False)],
)
def test_command_keeps_the_language_of_each_source(data, language, own, is_identified):
    manifest = ShardSet.open(data / "instances" / "32").manifest
    sources = [{"input": f"{number}.txt", "language": code} for number, code in enumerate(own)]
    manifest.config.update(language=language, sources=sources, language_model="lid.176.bin")
    command = shlex.split(build_command(load_run_config("debug"), Path("x"), manifest))
    _, options = DATA_PROGRAM.parse("build", command[2:])
    built = make_config(options)
    assert [(source.input, source.language) for source in built.sources] == [
        (f"{number}.txt", code) for number, code in enumerate(own)
    ]
    assert built.language == language
    assert built.language_model == ("lid.176.bin" if is_identified else None)


@pytest.mark.parametrize("name", shipped_names("recipe"))
def test_the_command_resolves_to_what_recipe_and_flags_state(name, data):
    flags = {"shards": {"masked_lm_prob": 0.2}, "phases": {"0": {"max_seq_length": 64}}}
    config = load_run_config(name, flags=flags)
    command = shlex.split(
        build_command(config, Path("mine/instances/64"), ShardSet.open(data / "instances" / "32").manifest)
    )
    assert command[:4] == ["megabert-data", "build", "--for", name]
    _, options = DATA_PROGRAM.parse("build", command[2:])
    built = make_config(options)
    for field, value in build_fields(config).items():
        found = getattr(built, field)
        assert (list(found) if isinstance(found, tuple) else found) == value
    assert (built.validation_share, str(options.output)) == (0.2, f"mine-{name}")


def test_a_run_with_a_checkpoint_is_not_compared_again(data, tmp_path):
    phases = {"0": {"max_seq_length": 32}, "1": {"max_seq_length": 64}}
    flags = {"data": {"path": str(data)}, "phases": phases, "shards": {"masking": "dynamic"}}
    config = load_run_config("debug", flags=flags)
    with pytest.raises(DataError, match="masking: static in the shards, dynamic wanted"):
        open_inputs(config, tmp_path, device=torch.device("cpu"))
    (tmp_path / "checkpoints" / "step_00000002").mkdir(parents=True)
    assert open_inputs(config, tmp_path, device=torch.device("cpu")).objective == "nsp"


@pytest.mark.parametrize("name", PER_LENGTH)
def test_a_number_for_each_length_is_needed(name):
    with pytest.raises(ConfigError, match=rf"shards.{name}=\[1\]: give one number for each .*\[128, 512\]"):
        load_run_config("debug", flags={"shards": {name: [1]}})
