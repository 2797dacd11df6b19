"""The refusals of a fine-tuning before it starts, and the report of its dry run."""

import json
import shutil

import pytest
import yaml
from unit.downstream.finetuning.conftest import refused

from megabert.cli import main

pytestmark = pytest.mark.usefixtures("without_gpu")


def dry_run(model, data, *flags: str, task: str = "rte") -> int:
    return main(["finetune", task, "--model", str(model), "--data", str(data), "--dry-run", *flags])


def test_dry_run_counts(glue, model_dir, tmp_path, capsys):
    assert dry_run(model_dir, glue / "RTE", "--output-dir", str(tmp_path / "new")) == 0
    assert "240 items to train on, 41 of dev" in capsys.readouterr().out
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("flags", "code", "phrase"),
    [
        (["--engine", "zero9"], 2, "zero9"),
        (["--engine", "zero0", "--precision", "bf16"], 2, "zero_optimization.stage=0 cannot train in bf16"),
        (["--precision", "fp16", "--device", "cpu"], 2, "precision=fp16 needs a GPU"),
        (["--precision", "fp8"], 2, "precision"),
        (["--output-dir", "FOLDER"], 4, "holds train.tsv, so it is left alone"),
    ],
)
def test_dry_run_refuses_what_the_run_refuses(flags, code, phrase, glue, model_dir, tmp_path, capsys):
    (tmp_path / "train.tsv").touch()
    flags = [str(tmp_path) if flag == "FOLDER" else flag for flag in flags]
    words = ["finetune", "rte", "--model", str(model_dir), "--data", str(glue / "RTE"), *flags]
    for stop in ([], ["--dry-run"]):
        refused(capsys, main([*words, *stop]), code, phrase)


def test_dry_run_for_a_gpu_that_is_elsewhere_says_so(glue, model_dir, capsys):
    assert dry_run(model_dir, glue / "RTE", "--device", "cuda") == 0
    assert "this machine has no GPU" in capsys.readouterr().out
    refused(capsys, dry_run(model_dir, glue / "RTE", "--device", "cuda", "--engine", "zero9"), 2, "zero9")


def test_one_learning_rate_is_the_rate(glue, model_dir, capsys):
    words = ["finetune", "rte", "--model", str(model_dir), "--data", str(glue / "RTE"), "--print-config"]
    assert main([*words, "--learning-rates", "0.002"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["learning_rate"] == 0.002


def test_unseen_label_is_named(glue, model_dir, tmp_path, capsys):
    data = shutil.copytree(glue / "RTE", tmp_path / "RTE")
    text = (data / "dev.tsv").read_text().replace("not_entailment", "neutral", 1)
    (data / "dev.tsv").write_text(text)
    refused(capsys, dry_run(model_dir, data), 3, "dev.tsv:3", "'neutral'", "entailment, not_entailment")


@pytest.mark.parametrize("content", ["", "sentence1\tsentence2\tlabel\n"])
def test_empty_file_is_named(content, model_dir, tmp_path, capsys):
    (tmp_path / "train.tsv").write_text(content)
    (tmp_path / "dev.tsv").write_text("")
    refused(capsys, dry_run(model_dir, tmp_path), 3, "train.tsv", "holds no examples")


def test_missing_column_is_named(glue, model_dir, capsys):
    code = dry_run(model_dir, glue / "RTE", "--text-column", "premise")
    refused(capsys, code, 3, "train.tsv: no column 'premise'", "'sentence1'")


def test_missing_data_is_named(model_dir, tmp_path, capsys):
    refused(capsys, dry_run(model_dir, tmp_path / "nowhere"), 3, "no such file or folder", "--eval-data")


def test_checkpoint_of_another_family_is_refused(glue, model_dir, tmp_path, capsys):
    folder = shutil.copytree(model_dir, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "gpt2"}))
    refused(capsys, dry_run(folder, glue / "RTE"), 2, "model_type='gpt2'")


def test_tokenizer_that_does_not_fit_is_refused(glue, model_dir, tmp_path, capsys):
    folder = shutil.copytree(model_dir, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 999}))
    refused(capsys, dry_run(folder, glue / "RTE"), 3, "the tokenizer has", "the model 999")


def test_sequence_beyond_the_positions_is_refused(glue, model_dir, capsys):
    code = dry_run(model_dir, glue / "RTE", "--max-seq-length", "65")
    refused(capsys, code, 2, "max_seq_length=65", "64 positions")


def test_unknown_setting_is_refused(glue, model_dir, capsys):
    code = dry_run(model_dir, glue / "RTE", "--learning-rat", "1")
    refused(capsys, code, 2, "learning_rat: unknown field; did you mean learning_rate?")


def test_folder_that_is_no_model_is_refused(glue, capsys):
    refused(capsys, dry_run(glue, glue / "RTE"), 2, "neither a run folder", "Hugging Face folder")


@pytest.mark.parametrize(
    ("task", "code", "phrases"),
    [("rte", 4, ["no head for the task rte", "megabert finetune rte"]), (None, 2, ["does not say", "--task"])],
)
def test_evaluation_without_a_head_is_refused(glue, model_dir, capsys, task, code, phrases):
    words = ["evaluate", "--model", str(model_dir), "--data", str(glue / "RTE"), "--device", "cpu"]
    refused(capsys, main([*words, *(["--task", task] if task else [])]), code, *phrases)


def test_settings_of_training_are_none_of_an_evaluation(glue, model_dir, capsys):
    words = [
        "evaluate",
        "--model",
        str(model_dir),
        "--data",
        str(glue / "RTE"),
        "--task",
        "rte",
        "--learning-rate",
        "1",
    ]
    refused(capsys, main(words), 2, "learning_rate: no setting of an evaluation", "max_seq_length")


def test_lone_training_file_is_split_the_same_way_each_time(glue, model_dir, capsys):
    code = dry_run(model_dir, glue / "RTE" / "train.tsv", "--held-out", "0.25")
    assert code == 0
    assert "180 items to train on, 60 of held_out" in capsys.readouterr().out
