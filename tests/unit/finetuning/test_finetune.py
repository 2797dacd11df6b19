"""Whole fine-tunings, as a shell starts them: scores, seeds, ranks, a kill, re-scoring, and what is refused."""

import json
import math
import random
import shutil
from pathlib import Path

import pytest
import torch
import transformers
import yaml
from forked.client import run_command
from unit.finetuning.conftest import sentence

from megabert.cli import main
from megabert.finetuning.finetune import has_finished
from megabert.finetuning.saved_model import KEY
from megabert.finetuning.trainer import TaskTrainer

FLAGS = "--epochs 3 --learning-rate 3e-3 --max-seq-length 32 --global-batch-size 8 --seed 5 --device cpu".split()  # noqa: SIM905


@pytest.fixture(autouse=True, scope="module")
def without_gpu():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        yield


def write_rte(path: Path, count: int, seed: int) -> None:
    rng = random.Random(seed)
    words, labels = ("good", "bad"), ("entailment", "not_entailment")
    rows = [f"{i}\t{sentence(rng, *3 * [words[i % 2]])}\t{sentence(rng)}\t{labels[i % 2]}\n" for i in range(count)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("index\tsentence1\tsentence2\tlabel\n" + "".join(rows))


@pytest.fixture(scope="module")
def glue(tmp_path_factory) -> Path:
    """A GLUE folder with one task."""
    folder = tmp_path_factory.mktemp("glue")
    write_rte(folder / "RTE" / "train.tsv", 240, 1)
    write_rte(folder / "RTE" / "dev.tsv", 41, 2)
    return folder


@pytest.fixture(scope="module")
def finished(glue, model_dir, tmp_path_factory) -> tuple[Path, str]:
    """Two seeds of RTE, and what that printed."""
    out = tmp_path_factory.mktemp("out") / "rte"
    return out, start(glue, model_dir, out, "--seeds", "2")


def start(glue, model_dir, out: Path, *flags: str, ranks: int = 1) -> str:
    """Fine-tune in processes of its own; return what it printed."""
    words = ["finetune", "rte", "--model", str(model_dir), "--data", str(glue / "RTE"), "--output-dir", str(out)]
    printed, log = out.with_suffix(".out"), out.with_suffix(".log")
    code = run_command("megabert", [*words, *FLAGS, *flags], printed, stderr=log, ranks=ranks)
    assert code == 0, log.read_text()[-4000:]
    return printed.read_text()


def losses(folder: Path) -> list[float]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["train/loss"] for row in rows if "train/loss" in row]


def test_two_seeds_learn_and_print_their_table(finished):
    out, printed = finished
    summary = json.loads((out / "results.json").read_text())
    assert summary["seeds"] == [5, 6]
    assert summary["mean"]["dev"]["accuracy"] > 0.9
    assert "rte: scores in points" in printed
    assert "mean of seeds 5, 6" in printed
    assert printed.strip() in (out / "results.md").read_text()
    assert losses(out / "seed_5") != losses(out / "seed_6")


def test_result_names_the_ops_that_were_replaced(finished, glue, model_dir, tmp_path, monkeypatch):
    assert json.loads((finished[0] / "seed_5" / "result.json").read_text())["replaced_ops"] == []
    sentence = "ops.attention: torch takes the place of a kernel that is wrong here"
    monkeypatch.setattr("megabert.finetuning.finetune.prove_ops", lambda *_, **__: (sentence,))
    words = ["finetune", "rte", "--model", str(model_dir), "--data", str(glue / "RTE"), "--output-dir", str(tmp_path)]
    assert main([*words, *FLAGS, "--epochs", "0.1"]) == 0
    assert json.loads((tmp_path / "seed_5" / "result.json").read_text())["replaced_ops"] == [sentence]


def test_predictions_have_their_source_and_are_those_of_transformers(finished, glue):
    out, _ = finished
    folder = out / "seed_5" / "model"
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert model.config.id2label == {0: "entailment", 1: "not_entailment"}
    rows = [json.loads(line) for line in (out / "seed_5" / "predictions_dev.jsonl").read_text().splitlines()]
    assert len(rows) == 41
    source = (glue / "RTE" / "dev.tsv").read_text().splitlines()
    for row in rows:
        assert source[row["line"] - 1].split("\t") == [row["id"], row["text"], row["pair"], row["label"]]
        assert row["correct"] == (row["prediction"] == row["label"])
    rng = random.Random(2)
    for i, row in enumerate(rows[:8]):
        pair = (sentence(rng, *3 * [("good", "bad")[i % 2]]), sentence(rng))
        with torch.no_grad():
            probabilities = torch.softmax(model(**tokenizer(*pair, return_tensors="pt")).logits[0], -1)
        assert row["probabilities"] == pytest.approx(
            dict(zip(("entailment", "not_entailment"), probabilities.tolist(), strict=True)), abs=1e-5
        )


def test_evaluate_gives_the_same_score(finished, glue, tmp_path, capsys):
    out, _ = finished
    result = json.loads((out / "seed_6" / "result.json").read_text())
    words = ["--model", str(out / "seed_6" / "model"), "--predictions", str(tmp_path / "again"), "--device", "cpu"]
    assert main(["evaluate", *words, "--data", str(glue / "RTE" / "dev.tsv")]) == 0
    lines = capsys.readouterr().out.splitlines()
    score = f"{100 * result['metrics']['dev']['accuracy']:.2f}"
    assert lines[2].split() == ["accuracy", score, "51.22"], "21 of 41 have the same label"
    before = (out / "seed_6" / "predictions_dev.jsonl").read_text()
    assert [json.loads(line)["prediction"] for line in (tmp_path / "again.jsonl").read_text().splitlines()] == [
        json.loads(line)["prediction"] for line in before.splitlines()
    ]


def test_outputs_without_names_take_the_tasks_labels(finished, glue, tmp_path, capsys):
    model = shutil.copytree(finished[0] / "seed_6" / "model", tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    del config[KEY]  # as another program writes it
    (model / "config.json").write_text(json.dumps({**config, "id2label": {"0": "LABEL_0", "1": "LABEL_1"}}))
    words = ["--data", str(glue / "RTE"), "--device", "cpu", "--task", "rte", "--max-seq-length", "32"]
    for folder in (model, finished[0] / "seed_6" / "model"):
        assert main(["evaluate", "--model", str(folder), *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == lines[3:]


def test_killed_seed_starts_anew_and_ends_alike_and_finished_ones_stay(finished, glue, model_dir, tmp_path):
    out = shutil.copytree(finished[0], tmp_path / "out")
    before = losses(out / "seed_6")
    result = json.loads((out / "seed_6" / "result.json").read_text())
    (out / "seed_6" / "result.json").unlink()  # what a killed seed leaves: everything but its last file
    kept = (out / "seed_5" / "model" / "model.safetensors").stat()
    start(glue, model_dir, out, "--seeds", "2")
    after = (out / "seed_5" / "model" / "model.safetensors").stat()
    assert (kept.st_mtime_ns, kept.st_ino) == (after.st_mtime_ns, after.st_ino)
    assert losses(out / "seed_6") == before
    assert json.loads((out / "seed_6" / "result.json").read_text())["metrics"] == result["metrics"]


def test_seed_whose_model_is_gone_is_trained_again(finished, tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr("megabert.finetuning.finetune.logger.warning", lambda *words: said.append(words[0] % words[1:]))
    out = shutil.copytree(finished[0], tmp_path / "out")
    assert has_finished(out, 5)
    shutil.rmtree(out / "seed_5" / "model")
    assert not has_finished(out, 5)
    assert said == [f"{out}/seed_5/model/config.json is gone: seed 5 is trained again"]


def test_seed_that_diverges_does_not_end_the_others(glue, model_dir, tmp_path, monkeypatch, capsys):
    step = TaskTrainer._step

    def spoilt(trainer, number, seed, rate):
        if (number, seed) == (2, 5):
            for fragment in trainer.engine.fragments:
                fragment.view().fill_(math.nan)
            trainer.engine.refresh()
        return step(trainer, number, seed, rate)

    monkeypatch.setattr(TaskTrainer, "_step", spoilt)
    words = ["finetune", "rte", "--model", str(model_dir), "--data", str(glue / "RTE"), "--output-dir", str(tmp_path)]
    code = main([*words, *FLAGS, "--epochs", "0.5", "--seeds", "2"])
    refused(capsys, code, 3, "The other seeds continue", "NonFiniteSteps: seed 5: 10 steps in a row up to step 11")
    assert not (tmp_path / "seed_5" / "result.json").exists()
    assert len(losses(tmp_path / "seed_6")) == 15
    assert all(map(math.isfinite, losses(tmp_path / "seed_6")))
    assert has_finished(tmp_path, 6)


def test_ranks_go_on_together_after_a_seed_that_diverges(glue, model_dir, tmp_path):
    words = ["finetune", "rte", "--model", str(model_dir), "--data", str(glue / "RTE"), "--output-dir"]
    wild = ["--learning-rate", "1000", "--weight-decay", "1000", "--seeds", "2", "--engine", "zero1"]
    log = tmp_path / "log"
    code = run_command("megabert", [*words, str(tmp_path / "out"), *FLAGS, *wild], tmp_path / "p", stderr=log, ranks=2)
    assert code == 3
    said = log.read_text()
    assert said.count("The other seeds continue") == 2
    assert said.splitlines()[-1].startswith("megabert: NonFiniteSteps: seed 5: 10 steps in a row up to step 12 ")


def test_two_ranks_under_zero_train_like_one(finished, glue, model_dir, tmp_path):
    printed = start(glue, model_dir, tmp_path / "out", "--engine", "zero1", ranks=2)
    assert printed.count("accuracy") == 1
    assert losses(tmp_path / "out" / "seed_5") == pytest.approx(losses(finished[0] / "seed_5"), abs=2e-3)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out" / "seed_5" / "model")
    assert sum(p.numel() for p in model.parameters()) > 0


def test_random_weights_take_shape_and_tokenizer_alone(glue, model_dir, tmp_path):
    shape = shutil.copytree(model_dir, tmp_path / "shape", ignore=shutil.ignore_patterns("*.safetensors"))
    start(glue, shape, tmp_path / "out", "--random-weights", "true", "--epochs", "0.1", "--seeds", "2")
    models = [tmp_path / "out" / f"seed_{seed}" / "model" for seed in (5, 6)]
    layers = [
        transformers.AutoModelForSequenceClassification.from_pretrained(folder)
        .bert.encoder.layer[0]
        .output.dense.weight
        for folder in models
    ]
    assert (layers[0] - layers[1]).abs().max() > 0.02  # each seed draws its own
    assert f"random weights of the shape of {shape}" in (models[0] / "README.md").read_text()


def refused(capsys, code: int, expected: int, *phrases: str) -> None:
    error = capsys.readouterr().err
    assert code == expected, error
    assert "Traceback" not in error
    for phrase in phrases:
        assert phrase in error


def dry_run(model, data, *flags: str, task: str = "rte") -> int:
    return main(["finetune", task, "--model", str(model), "--data", str(data), "--dry-run", *flags])


def test_other_settings_in_the_same_folder_are_refused(finished, glue, model_dir, capsys):
    words = [
        "finetune",
        "rte",
        "--model",
        str(model_dir),
        "--data",
        str(glue / "RTE"),
        "--output-dir",
        str(finished[0]),
    ]
    code = main([*words, *FLAGS, "--weight-decay", "0.5"])
    refused(capsys, code, 4, "settings.weight_decay: 0.01 -> 0.5", "--output-dir")


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


def test_empty_file_is_named(model_dir, tmp_path, capsys):
    (tmp_path / "train.tsv").write_text("")
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


def test_settings_without_effect_on_an_evaluation_are_refused(finished, glue, capsys):
    words = ["evaluate", "--model", str(finished[0] / "seed_5" / "model"), "--data", str(glue / "RTE")]
    refused(capsys, main([*words, "--n-best", "5"]), 2, "--n-best has no effect", "span")


def test_evaluation_for_another_task_is_refused(finished, glue, capsys):
    words = [
        "evaluate",
        "--model",
        str(finished[0] / "seed_5" / "model"),
        "--data",
        str(glue / "RTE"),
        "--device",
        "cpu",
    ]
    refused(capsys, main([*words, "--task", "stsb", "--label-column", "index"]), 4, "2 outputs, the task stsb needs 1")


def test_evaluation_of_the_run_folder_names_its_models(finished, glue, capsys):
    words = ["evaluate", "--model", str(finished[0]), "--data", str(glue / "RTE")]
    refused(capsys, main(words), 2, "seed_5/model")


def test_lone_training_file_is_split_the_same_way_each_time(glue, model_dir, capsys):
    code = dry_run(model_dir, glue / "RTE" / "train.tsv", "--held-out", "0.25")
    assert code == 0
    assert "180 items to train on, 60 of held_out" in capsys.readouterr().out
