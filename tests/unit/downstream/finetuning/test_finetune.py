"""Whole fine-tunings, as a shell starts them: scores, seeds, ranks, a kill, re-scoring, and what is refused."""

import json
import math
import shutil
from pathlib import Path

import pytest
import transformers
from forked.client import run_command

from megabert.downstream.finetuning.finetune import has_finished
from megabert.downstream.finetuning.rates import RATES
from megabert.downstream.finetuning.saved_model import KEY
from megabert.downstream.finetuning.trainer import TaskTrainer

pytestmark = pytest.mark.usefixtures("without_gpu")
FLAGS = "--epochs 2 --learning-rate 3e-3 --max-seq-length 32 --global-batch-size 8 --seed 5 --device cpu".split()  # noqa: SIM905
AUTO = ("--learning-rate", "auto")


@pytest.fixture(scope="module")
def finished(rte, tmp_path_factory) -> tuple[Path, str]:
    """Two seeds of RTE, and what that printed."""
    out = tmp_path_factory.mktemp("out") / "rte"
    return out, start(rte, out, "--seeds", "2")


def start(rte, out: Path, *flags: str, ranks: int = 1) -> str:
    """Fine-tune in processes of its own; return what it printed."""
    printed, log = out.with_suffix(".out"), out.with_suffix(".log")
    words = [*rte, "--output-dir", str(out), *FLAGS, *flags]
    code = run_command("megabert", words, printed, stderr=log, ranks=ranks)
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


def test_result_names_the_ops_that_were_replaced(finished, rte, tmp_path, monkeypatch, megabert):
    assert json.loads((finished[0] / "seed_5" / "result.json").read_text())["replaced_ops"] == []
    sentence = "ops.attention: torch takes the place of a kernel that is wrong here"
    monkeypatch.setattr("megabert.downstream.finetuning.finetune.prove_ops", lambda *_, **__: (sentence,))
    megabert(*rte, "--output-dir", tmp_path, *FLAGS, "--epochs", "0.1")
    assert json.loads((tmp_path / "seed_5" / "result.json").read_text())["replaced_ops"] == [sentence]


def test_predictions_have_their_source(finished, glue):
    out, _ = finished
    config = json.loads((out / "seed_5" / "model" / "config.json").read_text())
    assert config["id2label"] == {"0": "entailment", "1": "not_entailment"}
    rows = [json.loads(line) for line in (out / "seed_5" / "predictions_dev.jsonl").read_text().splitlines()]
    assert len(rows) == 41
    source = (glue / "RTE" / "dev.tsv").read_text().splitlines()
    for row in rows:
        assert source[row["line"] - 1].split("\t") == [row["id"], row["text"], row["pair"], row["label"]]
        assert row["correct"] == (row["prediction"] == row["label"])


def test_evaluate_gives_the_same_score(finished, glue, tmp_path, megabert):
    out, _ = finished
    result = json.loads((out / "seed_6" / "result.json").read_text())
    words = ["--model", str(out / "seed_6" / "model"), "--predictions", str(tmp_path / "again"), "--device", "cpu"]
    lines = megabert("evaluate", *words, "--data", glue / "RTE" / "dev.tsv").out.splitlines()
    score = f"{100 * result['metrics']['dev']['accuracy']:.2f}"
    assert lines[2].split() == ["accuracy", score, "51.22"], "21 of 41 have the same label"
    files = (tmp_path / "again.jsonl", out / "seed_6" / "predictions_dev.jsonl")
    again, before = ([json.loads(line)["prediction"] for line in path.read_text().splitlines()] for path in files)
    assert again == before


def test_outputs_without_names_take_the_tasks_labels(finished, glue, tmp_path, megabert):
    model = shutil.copytree(finished[0] / "seed_6" / "model", tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    del config[KEY]  # as another program writes it
    (model / "config.json").write_text(json.dumps({**config, "id2label": {"0": "LABEL_0", "1": "LABEL_1"}}))
    words = ["--data", str(glue / "RTE"), "--device", "cpu", "--task", "rte", "--max-seq-length", "32"]
    without, named = (megabert("evaluate", "--model", one, *words) for one in (model, finished[0] / "seed_6/model"))
    assert without.out == named.out
    read_as = "they are read as entailment, not_entailment, in this order"
    assert [printed.err.count(read_as) for printed in (without, named)] == [1, 0]


def test_killed_seed_starts_anew_and_ends_alike_and_finished_ones_stay(finished, rte, tmp_path):
    out = shutil.copytree(finished[0], tmp_path / "out")
    before = losses(out / "seed_6")
    result = json.loads((out / "seed_6" / "result.json").read_text())
    (out / "seed_6" / "result.json").unlink()  # what a killed seed leaves: everything but its last file
    kept = (out / "seed_5" / "model" / "model.safetensors").stat()
    start(rte, out, "--seeds", "2")
    after = (out / "seed_5" / "model" / "model.safetensors").stat()
    assert (kept.st_mtime_ns, kept.st_ino) == (after.st_mtime_ns, after.st_ino)
    assert losses(out / "seed_6") == before
    assert json.loads((out / "seed_6" / "result.json").read_text())["metrics"] == result["metrics"]


def test_seed_whose_model_is_gone_is_trained_again(finished, tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(
        "megabert.downstream.finetuning.finetune.logger.warning", lambda *words: said.append(words[0] % words[1:])
    )
    out = shutil.copytree(finished[0], tmp_path / "out")
    assert has_finished(out, 5)
    shutil.rmtree(out / "seed_5" / "model")
    assert not has_finished(out, 5)
    assert said == [f"{out}/seed_5/model/config.json is gone: seed 5 is trained again"]


def test_seed_that_diverges_does_not_end_the_others(rte, tmp_path, monkeypatch, megabert):
    step = TaskTrainer._step

    def spoilt(trainer, number, seed, rate):
        if (number, seed) == (2, 5):
            for fragment in trainer.engine.fragments:
                fragment.view().fill_(math.nan)
            trainer.engine.refresh()
        return step(trainer, number, seed, rate)

    monkeypatch.setattr(TaskTrainer, "_step", spoilt)
    said = megabert(*rte, "--output-dir", tmp_path, *FLAGS, "--epochs", "0.5", "--seeds", "2", code=3).err
    assert "The other seeds continue" in said
    assert "NonFiniteSteps: seed 5: 10 steps in a row up to step 11" in said
    assert not (tmp_path / "seed_5" / "result.json").exists()
    assert len(losses(tmp_path / "seed_6")) == 15
    assert all(map(math.isfinite, losses(tmp_path / "seed_6")))
    assert has_finished(tmp_path, 6)


def test_ranks_go_on_together_after_a_seed_that_diverges(rte, tmp_path):
    wild = ["--learning-rate", "1000", "--weight-decay", "1000", "--seeds", "2", "--engine", "zero1"]
    words, log = [*rte, "--output-dir", str(tmp_path / "out"), *FLAGS, *wild], tmp_path / "log"
    assert run_command("megabert", words, tmp_path / "p", stderr=log, ranks=2) == 3
    said = log.read_text()
    assert said.count("The other seeds continue") == 2
    assert said.splitlines()[-1].startswith("megabert: NonFiniteSteps: seed 5: 10 steps in a row up to step 12 ")


def test_two_ranks_under_zero_train_like_one(finished, rte, tmp_path):
    printed = start(rte, tmp_path / "out", "--engine", "zero1", ranks=2)
    assert printed.count("accuracy") == 1
    assert losses(tmp_path / "out" / "seed_5") == pytest.approx(losses(finished[0] / "seed_5"), abs=2e-3)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out" / "seed_5" / "model")
    assert sum(p.numel() for p in model.parameters()) > 0


def test_random_weights_take_shape_and_tokenizer_alone(rte, model_dir, tmp_path):
    shape = shutil.copytree(model_dir, tmp_path / "shape", ignore=shutil.ignore_patterns("*.safetensors"))
    words = ["--model", str(shape), "--random-weights", "true", "--epochs", "0.1", *AUTO, "--seeds", "2"]
    start(rte, tmp_path / "out", *words)
    rate = RATES[128][True]
    reason = f"learning rate {rate:g} (auto): random weights of width 32, by the table's row for 128"
    assert reason in (tmp_path / "out.log").read_text()
    assert reason in (tmp_path / "out" / "logs" / "rank_000.log").read_text()
    assert json.loads((tmp_path / "out" / "results.json").read_text())["learning_rate"] == rate
    assert json.loads((tmp_path / "out" / "finetune.json").read_text())["settings"]["learning_rate"] == rate
    models = [tmp_path / "out" / f"seed_{seed}" / "model" for seed in (5, 6)]
    one, other = map(transformers.AutoModelForSequenceClassification.from_pretrained, models)
    layers = [model.bert.encoder.layer[0].output.dense.weight for model in (one, other)]
    assert (layers[0] - layers[1]).abs().max() > 0.02  # each seed draws its own
    card = (models[0] / "README.md").read_text()
    assert f"random weights of the shape of {shape}" in card
    assert "| longest sequence | 32 trained, 64 positions |" in card
    assert json.loads((models[0] / "tokenizer_config.json").read_text())["model_max_length"] == 32


@pytest.mark.parametrize(
    ("model", "flags", "code", "phrases"),
    [
        ("seed_5/model", ["--n-best", "5"], 2, ["--n-best has no effect", "span"]),
        ("seed_5/model", ["--task", "stsb", "--label-column", "index"], 4, ["2 outputs, the task stsb needs 1"]),
        ("", [], 2, ["seed_5/model"]),
    ],
)
def test_evaluations_that_do_not_fit_are_refused(finished, glue, megabert, model, flags, code, phrases):
    words = ["evaluate", "--model", finished[0] / model, "--data", glue / "RTE", "--device", "cpu", *flags]
    said = megabert(*words, code=code).err
    assert all(phrase in said for phrase in phrases)
