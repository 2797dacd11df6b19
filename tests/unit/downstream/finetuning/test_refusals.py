"""The refusals of a fine-tuning before it starts, and the report of its dry run."""

import pytest
import yaml

pytestmark = pytest.mark.usefixtures("without_gpu")


@pytest.mark.parametrize(
    ("file", "flags", "counts"),
    [
        ("", [], "240 items to train on, 41 of dev"),
        ("train.tsv", ["--held-out", "0.25"], "180 items to train on, 60 of"),
    ],
)
def test_dry_run_counts(glue, rte, tmp_path, megabert, file, flags, counts):
    words = [*rte[:-1], glue / "RTE" / file, *flags]
    assert counts in megabert(*words, "--dry-run", "--output-dir", tmp_path / "new").out
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
def test_dry_run_refuses_what_the_run_refuses(flags, code, phrase, rte, tmp_path, megabert):
    (tmp_path / "train.tsv").touch()
    flags = [str(tmp_path) if flag == "FOLDER" else flag for flag in flags]
    for stop in ([], ["--dry-run"]):
        assert phrase in megabert(*rte, *flags, *stop, code=code).err


def test_dry_run_for_a_gpu_that_is_elsewhere_says_so(rte, megabert):
    words = [*rte, "--dry-run", "--device", "cuda"]
    assert "this machine has no GPU" in megabert(*words).out
    assert "zero9" in megabert(*words, "--engine", "zero9", code=2).err


def test_one_learning_rate_is_the_rate(rte, megabert):
    printed = megabert(*rte, "--print-config", "--learning-rates", "0.002").out
    assert yaml.safe_load(printed)["learning_rate"] == 0.002


@pytest.mark.parametrize(
    ("flags", "code", "phrases"),
    [
        (["--data", "nowhere"], 3, ["no such file or folder", "--eval-data"]),
        (["--max-seq-length", "65"], 2, ["max_seq_length=65", "64 positions"]),
    ],
)
def test_data_and_lengths_that_are_not_there_are_refused(rte, megabert, flags, code, phrases):
    said = megabert(*rte, "--dry-run", *flags, code=code).err
    assert all(phrase in said for phrase in phrases)


@pytest.mark.parametrize(
    ("task", "code", "phrases"),
    [("rte", 4, ["no head for the task rte", "megabert finetune rte"]), (None, 2, ["does not say", "--task"])],
)
def test_evaluation_without_a_head_is_refused(rte, megabert, task, code, phrases):
    said = megabert("evaluate", *rte[2:], "--device", "cpu", *(["--task", task] if task else []), code=code).err
    assert all(phrase in said for phrase in phrases)


def test_settings_of_training_are_none_of_an_evaluation(rte, megabert):
    said = megabert("evaluate", *rte[2:], "--task", "rte", "--learning-rate", "1", code=2).err
    assert "learning_rate: no setting of an evaluation" in said
    assert "max_seq_length" in said
