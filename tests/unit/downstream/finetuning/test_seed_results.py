"""The output folder of a fine-tuning: which command continues it, its summary over seeds, and damaged files."""

import json
from types import SimpleNamespace

import pytest

from megabert.downstream.finetuning.finetune import finetune_settings
from megabert.downstream.finetuning.seed_results import SETTINGS_NAME, claim_folder, read_summary, summarize
from megabert.foundation.errors import CheckpointError, ConfigError
from megabert.settings.config.finetune import FinetuneConfig


def claim(folder, **settings):
    kind = SimpleNamespace(
        task=SimpleNamespace(name="rte", package=None), config=FinetuneConfig(model="m", data="d", **settings)
    )
    prepared = SimpleNamespace(kind=kind, identity={"tokenizer": "0" * 64})
    claim_folder(folder / SETTINGS_NAME, finetune_settings(prepared))


def write_result(folder, seed, score, **fields):
    (folder / f"seed_{seed}").mkdir(parents=True)
    scores = {"metrics": {"dev": {"accuracy": score}}, "baseline": {"dev": {"accuracy": 0.5}}}
    content = {"seed": seed, "learning_rate": 3e-5, "score": score, **scores, "examples_per_s": 10.0, **fields}
    (folder / f"seed_{seed}" / "result.json").write_text(json.dumps(content))


def test_summary_is_over_seeds_and_read_back(tmp_path):
    write_result(tmp_path, 1, 0.5, history=[{"step": 1, "accuracy": 0.5}])  # a result holds more than the summary reads
    write_result(tmp_path, 2, 1)
    summary = summarize(tmp_path, "rte", [1, 2])
    assert summary.mean == {"dev": {"accuracy": 0.75}}
    assert summary.deviation["dev"]["accuracy"] == pytest.approx(0.5 / 2**0.5)
    assert (summary.best_seed, summary.best_model) == (2, str(tmp_path / "seed_2" / "model"))
    assert read_summary(tmp_path) == summary
    table = (tmp_path / "results.md").read_text().splitlines()
    assert table[3].startswith("rte: scores in points (100 = perfect)")
    assert table[5].split() == ["dev", "accuracy", "75.00", "+-", "35.36", "50.00"]


def test_seed_that_stays_at_the_constant_answer_is_named_with_the_remedy(tmp_path):
    for seed, score in enumerate((0.505, 0.52, 0.4), start=1):
        write_result(tmp_path, seed, score)
    assert summarize(tmp_path, "rte", [1, 2, 3]).stuck_seeds == [1, 3]
    told = [line for line in (tmp_path / "results.md").read_text().splitlines() if line.startswith("seed ")]
    assert [line.partition(",")[0] for line in told] == ["seed 1", "seed 3"]
    assert all("at rate 3e-05: no better than a constant answer. Try a higher --learning-rate" in line for line in told)


@pytest.mark.parametrize("names", [("test", "accuracy"), ("dev", "f1"), (None, "accuracy")])
def test_score_of_a_set_or_metric_that_is_not_there_is_refused(tmp_path, names):
    write_result(tmp_path, 1, 0.5)
    with pytest.raises(ConfigError, match=r"Known: |is no text"):
        summarize(tmp_path, "rte", [1]).shown(*names)


def test_same_settings_continue_and_others_are_refused(tmp_path):
    claim(tmp_path, betas=(0.9, 0.98))
    claim(tmp_path, betas=(0.9, 0.98), seeds=5, micro_batch_tokens=64)
    with pytest.raises(CheckpointError, match=r"settings.epochs: 3.0 -> 4.0"):
        claim(tmp_path, betas=(0.9, 0.98), epochs=4.0)


def test_folder_with_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(CheckpointError, match=r"holds thesis.tex, so it is left alone"):
        claim(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"task": 1, "settings": {}, "sha256": {}}', '{"task": "rte"}'])
def test_damaged_settings_are_named(tmp_path, content):
    (tmp_path / "finetune.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"finetune.json: damaged or edited .* Name a new --output-dir"):
        claim(tmp_path)


def test_damaged_result_is_named(tmp_path):
    write_result(tmp_path, 1, "high")
    with pytest.raises(CheckpointError, match=r"result.json: damaged or edited \(score: .* Delete it to train"):
        summarize(tmp_path, "rte", [1])
