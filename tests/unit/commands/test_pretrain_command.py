"""What ``megabert pretrain`` takes from the source of ``--init-from``, and what a run keeps that has begun."""

import json

import pytest
import yaml

from megabert.cli import main
from megabert.downstream.run_settings import initial_weights
from megabert.foundation.errors import MegabertError
from megabert.settings.config.loading import load_run_config
from megabert.training.run.folder import record_run

ELECTRA = {"model_type": "electra", "vocab_size": 5, "hidden_size": 64, "embedding_size": 32, "num_attention_heads": 4}


@pytest.fixture
def generator_size(tmp_path, capsys):
    """Return a function of a source's class and flags that gives the resolved ``model.generator_size``."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")

    def resolve(architecture: str, *flags: str) -> float | None:
        (source / "config.json").write_text(json.dumps({**ELECTRA, "architectures": [architecture]}))
        words = ["--recipe", "electra_small", "--init-from", str(source), "--run-dir", str(tmp_path / "run")]
        assert main(["pretrain", *words, "--print-config", *flags]) == 0
        model = yaml.safe_load(capsys.readouterr().out)["model"]
        assert (model["hidden_size"], model["embedding_size"]) == (64, 32)
        return model["generator_size"]

    return resolve


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), 0.25),  # the recipe's: it trains an ELECTRA
        (("--model.generator_size", "0.5"), 0.5),
        (("--model.generator_size", "null"), None),
    ],
)
def test_masked_lm_gets_the_generator_that_the_recipe_states(flags, expected, generator_size):
    assert generator_size("ElectraForMaskedLM", *flags) == expected


def test_masked_lm_gets_depth_and_sharing_of_the_recipes_generator(tmp_path, megabert):
    source = {"family": "deberta-v3", "hidden_size": 64, "num_attention_heads": 4}
    record_run(tmp_path / "source", load_run_config("debug", flags={"model": source}), {})
    (tmp_path / "source" / "tokenizer").mkdir()
    (tmp_path / "source" / "tokenizer" / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    folders = ["--init-from", str(tmp_path / "source"), "--run-dir", str(tmp_path / "run")]
    words = ["--recipe", "deberta_v3_small", *folders]
    flags = ["--model.embedding-sharing", "shared", "--print-config"]
    model = yaml.safe_load(megabert("pretrain", *words, *flags).out)["model"]
    own = load_run_config("deberta_v3_small").model
    assert (model["hidden_size"], model["generator_layers"]) == (64, own.generator_layers)
    assert model["embedding_sharing"] == "shared"


def test_generator_of_the_source_keeps_its_size(generator_size, monkeypatch):
    monkeypatch.setitem(ELECTRA, "generator_size", 0.5)
    assert generator_size("ElectraForPreTraining") == 0.5


def test_run_that_began_as_a_masked_lm_stays_one(generator_size, tmp_path):
    recorded = {"family": "electra", "hidden_size": 64, "embedding_size": 32, "generator_size": None}
    record_run(tmp_path / "run", load_run_config("electra_small", flags={"model": recorded}), {})
    assert generator_size("ElectraForMaskedLM") is None


def test_run_with_a_checkpoint_needs_its_source_no_more(tmp_path):
    config = load_run_config("debug", flags={"init_from": str(tmp_path / "moved")})
    with pytest.raises(MegabertError, match="moved"):
        initial_weights(config, tmp_path)
    (tmp_path / "checkpoints" / "step_00000002").mkdir(parents=True)  # `latest` was lost with a disk
    assert initial_weights(config, tmp_path) is None


def test_sizes_of_a_source_come_without_its_vocabulary_where_that_is_transferred(generator_size, tmp_path, megabert):
    generator_size("ElectraForMaskedLM")
    words = ["--recipe", "electra_small", "--init-from", str(tmp_path / "source"), "--run-dir", str(tmp_path / "run")]
    for flags, expected in (((), 5), (("--init-vocabulary", "transfer"), "auto")):
        printed = megabert("pretrain", *words, *flags, "--print-config").out
        assert yaml.safe_load(printed)["model"]["vocab_size"] == expected


@pytest.mark.parametrize("place", ["flag", "file"])
def test_fork_takes_the_other_runs_configuration_wherever_it_is_named(place, tmp_path, megabert):
    record_run(tmp_path / "origin", load_run_config("debug", flags={"seed": 7, "data": {"path": "corpus"}}), {})
    name, file = f"{tmp_path / 'origin'}@3", tmp_path / "fork.yaml"
    file.write_text(yaml.safe_dump({"fork": name}))
    words = ["--fork", name] if place == "flag" else ["--config", str(file)]
    config = yaml.safe_load(megabert("pretrain", *words, "--run-dir", tmp_path / "run", "--print-config").out)
    assert (config["seed"], config["fork"]) == (7, name)


def test_configuration_and_plan_are_printed_by_rank_zero_alone(monkeypatch, megabert):
    monkeypatch.setattr("megabert.commands.pretrain._dry_run", lambda *_: print("a plan"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("LOCAL_RANK", rank)
        for flag in ("--print-config", "--dry-run"):
            assert bool(megabert("pretrain", "--recipe", "debug", flag).out) == (rank == "0")


@pytest.mark.parametrize(
    ("flags", "device"), [((), None), (("--device", "cpu"), "cpu"), (("--device", "cuda"), "cuda")]
)
def test_plan_is_for_the_device_that_is_asked_for(flags, device, monkeypatch, megabert):
    monkeypatch.setattr("megabert.commands.pretrain._require_shards", lambda *_, **__: None)
    monkeypatch.setattr("megabert.tooling.planning.dry_run.open_dry_run", lambda *_, device, **__: f"for {device}")
    monkeypatch.setattr("megabert.tooling.planning.preflight.describe_run", lambda dry_run, _: dry_run)
    assert megabert("pretrain", "--recipe", "debug", "--dry-run", *flags).out == f"for {device}\n"


def test_plan_for_a_cpu_takes_no_gpu(megabert):
    said = megabert("pretrain", "--recipe", "debug", "--dry-run", "--device", "cpu", "--gpu", "h200", code=2).err
    assert "--gpu has no effect with --device cpu" in said
