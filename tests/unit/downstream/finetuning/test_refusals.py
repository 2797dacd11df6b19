"""The refusals of a fine-tuning before it starts, and the report of its dry run."""

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


def test_missing_data_is_named(model_dir, tmp_path, capsys):
    refused(capsys, dry_run(model_dir, tmp_path / "nowhere"), 3, "no such file or folder", "--eval-data")


def test_sequence_beyond_the_positions_is_refused(glue, model_dir, capsys):
    code = dry_run(model_dir, glue / "RTE", "--max-seq-length", "65")
    refused(capsys, code, 2, "max_seq_length=65", "64 positions")


@pytest.mark.parametrize(
    ("task", "code", "phrases"),
    [("rte", 4, ["no head for the task rte", "megabert finetune rte"]), (None, 2, ["does not say", "--task"])],
)
def test_evaluation_without_a_head_is_refused(glue, model_dir, capsys, task, code, phrases):
    words = ["evaluate", "--model", str(model_dir), "--data", str(glue / "RTE"), "--device", "cpu"]
    refused(capsys, main([*words, *(["--task", task] if task else [])]), code, *phrases)


def test_settings_of_training_are_none_of_an_evaluation(glue, model_dir, capsys):
    words = ["evaluate", "--model", str(model_dir), "--data", str(glue / "RTE"), "--task", "rte"]
    refused(
        capsys,
        main([*words, "--learning-rate", "1"]),
        2,
        "learning_rate: no setting of an evaluation",
        "max_seq_length",
    )


def test_lone_training_file_is_split_the_same_way_each_time(glue, model_dir, capsys):
    code = dry_run(model_dir, glue / "RTE" / "train.tsv", "--held-out", "0.25")
    assert code == 0
    assert "180 items to train on, 60 of held_out" in capsys.readouterr().out
