"""Scores from the files that megabert's commands write, as the Hugging Face Hub's own parser reads them off a card."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import yaml
from huggingface_hub import ModelCard as HubCard
from huggingface_hub import parse_eval_result_entries
from support.exported_models import CARD
from support.finetunings import summary, write_summary

from megabert.downstream.export.model_card import render_card, render_eval_results
from megabert.downstream.finetuning.grid.grid_results import GridResult, SetResult, SettingScore
from megabert.downstream.finetuning.tasks import TASKS
from megabert.downstream.inspection.masked_lm import LengthScore, MaskedLMScore
from megabert.downstream.inspection.pseudo_likelihood import PairScores, Scores, TextScore
from megabert.downstream.publish.card_scores import read_scores, refuse_repeated
from megabert.foundation.errors import CheckpointError, DataError
from megabert.training.probes.minimal_pairs import Pair

SETTINGS = {"checkpoint": "last", "random_weights": False, "max_train_examples": 0, "max_eval_examples": 0}


@pytest.fixture
def places(tmp_path):
    return {"export": tmp_path / "model", "run": tmp_path / "run", "checkpoint": "last"}


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def write_single(folder, places, task="mrpc", mean=None, **settings):
    own = {**SETTINGS, "model": str(places["export"]), "epochs": 3.0, "learning_rate": 3e-5, **settings}
    return write_summary(folder, summary(task, mean or {"dev": {"accuracy": 0.8125, "f1": 0.875}}), own)


def write_grid(folder, places):
    def settings(task, means, **words):
        scored = [
            SettingScore(learning_rate=rate, epochs=3.0, failed=[], summary=summary(task, means, **words))
            for rate in (1e-5, 3e-5)
        ]
        return {"task": task, "settings": scored}

    test = summary("rte", {"test": {"accuracy": 0.5}})
    sets = {
        "rte": SetResult(**settings("rte", {"dev": {"accuracy": 0.625}}), choice=1, test=test),
        "films": SetResult(
            **settings("classification", {"dev": {"accuracy": 0.75, "macro_f1": 0.7}}, seeds=[42]), choice=0
        ),
        "cola": SetResult(**settings("cola", {"dev": {"mcc": 0.5}})),
    }
    write(folder / "grid.json", {"settings": {**SETTINGS, "model": str(places["export"]), "start_from": None}})
    write(folder / "results.json", asdict(GridResult(sets=sets)))
    return folder


def write_pairs(path, model, **more):
    pairs = [Pair(sentence_good=good, sentence_bad=bad, UID="agreement") for good, bad in ("ab", "cd")]
    scores = Scores(np.array([-1.0, -3.0, -2.0, -2.0]), np.ones(4, np.int64))
    result = PairScores(name="english", pairs=pairs, scores=scores, windowed=0)
    what = {"model": str(model), "checkpoint": "last", "random_weights": False, "mask": "within-word", **more}
    return write(path, {**what, "sets": [result.to_dict()]})


@pytest.fixture
def read_back(config):
    return lambda scores: readings_of(scores, config)


def readings_of(scores, config):
    """Put scores on a card; return the Hub's readings of its header and of the file next to it."""
    card = replace(CARD, metrics={}, scores=tuple(scores))
    text = render_card(card, config, architecture="BertForPreTraining", parameters=1)
    entries = render_eval_results(tuple(scores))
    return HubCard(text).data.eval_results, parse_eval_result_entries(yaml.safe_load(entries) if entries else [])


def test_a_fine_tuning_is_on_the_card_and_beside_its_leaderboard(tmp_path, places, read_back):
    scores = read_scores(write_single(tmp_path / "mrpc", places), **places)
    results, (entry,) = read_back(scores)
    shown = [(one.dataset_type, one.dataset_config, one.metric_type, one.metric_value) for one in results]
    assert shown == [("nyu-mll/glue", "mrpc", "accuracy", 0.8125), ("nyu-mll/glue", "mrpc", "f1", 0.875)]
    assert results[0].task_type == "text-classification"
    assert (entry.dataset_id, entry.task_id, entry.value) == ("nyu-mll/glue", "mrpc", 81.25)
    assert entry.notes == (
        "accuracy in points on mrpc dev, fine-tuned, 3 epochs, learning rate 3e-05, mean of 2 seeds, with megabert"
    )


def test_a_grid_gives_the_scores_of_its_choices(tmp_path, places, read_back):
    scores = read_scores(write_grid(tmp_path / "grid", places), **places)
    results, entries = read_back(scores)
    assert [(one.dataset_name, one.metric_type, one.metric_value) for one in results] == [
        ("rte dev", "accuracy", 0.625),
        ("rte test", "accuracy", 0.5),
        ("films dev", "accuracy", 0.75),
        ("films dev", "macro_f1", 0.7),
    ]
    assert [(entry.task_id, entry.value) for entry in entries] == [("rte", 62.5)]
    assert [score.note for score in scores] == [
        "fine-tuned, 3 epochs, learning rate 3e-05, the best of 2 settings, mean of 2 seeds",
        "fine-tuned, 3 epochs, learning rate 3e-05, the best of 2 settings on the evaluation set, mean of 2 seeds",
        "fine-tuned, 3 epochs, learning rate 1e-05, the best of 2 settings, one seed",
    ]


def test_part_of_a_set_is_no_score_for_a_leaderboard(tmp_path, places):
    (score,) = read_scores(write_single(tmp_path / "mrpc", places, max_eval_examples=100), **places)
    assert score.published is None
    assert "scored on 100 examples" in score.note


def test_pairs_likelihoods_and_losses_are_read(tmp_path, places, read_back):
    model = {"model": str(places["run"])}
    pairs = write_pairs(tmp_path / "pairs.json", places["run"])
    text = TextScore(sentences=2, pieces=4, characters=10, score=-8.0)
    likelihood = write(tmp_path / "pll.json", {**model, "data": "x/news.txt", "mask": "token", **text.to_dict()})
    total = LengthScore(
        lengths="all", sequences=1, predicted=8, loss=2.5, accuracy=0.5, unigram_loss=5.0, unigram_accuracy=0.1
    )
    masked = MaskedLMScore(total=total, by_length=(), tokens=64, next_sentence=None)
    loss = write(tmp_path / "mlm.json", {**model, "data": "x/news.txt", **masked.to_dict()})
    scores = [score for path in (pairs, likelihood, loss) for score in read_scores(path, **places)]
    results, entries = read_back(scores)
    assert [(one.dataset_name, one.metric_type, one.metric_value) for one in results] == [
        ("minimal pairs english", "accuracy", 0.5),
        ("sentences of news.txt", "pseudo_perplexity", text.perplexity),
        ("sentences of news.txt", "bits_per_character", text.bits_per_character),
        ("text of news.txt", "mlm_loss", 2.5),
        ("text of news.txt", "mlm_accuracy", 0.5),
        ("text of news.txt", "unigram_loss", 5.0),
    ]
    assert entries == []


@pytest.mark.parametrize(
    ("model", "more"),
    [("other", {}), ("run", {"checkpoint": "best"}), ("model", {"random_weights": True})],
    ids=["other model", "other checkpoint", "random weights"],
)
def test_scores_of_another_model_are_refused(model, more, tmp_path, places):
    path = write_pairs(tmp_path / "pairs.json", tmp_path / model, **more)
    with pytest.raises(DataError, match=r"pairs.json: has scores of .*Score the export: --model .*model"):
        read_scores(path, **places)


def test_scores_of_the_run_are_refused_for_an_export_of_other_weights(tmp_path, places):
    path = write_pairs(tmp_path / "pairs.json", places["run"])
    assert read_scores(path, **places)
    with pytest.raises(DataError, match=r"has scores of .*run \(last\), not of .*other weights.*--model .*model"):
        read_scores(path, **{**places, "run": None})


def test_a_grid_says_from_which_set_it_started(tmp_path, places):
    folder = write_grid(tmp_path / "grid", places)
    settings = {**SETTINGS, "model": str(places["export"]), "start_from": "rte"}
    write(folder / "grid.json", {"settings": settings})
    notes = {score.name: score.note for score in read_scores(folder, **places)}
    assert "with --start-from rte, the best of 2 settings" in notes["films dev"]
    assert "--start-from" not in notes["rte dev"]


def test_a_score_that_is_given_twice_is_refused(tmp_path, places):
    paths = [write_single(tmp_path / name, places) for name in ("a", "b")]
    scores = [score for path in paths for score in read_scores(path, **places)]
    refuse_repeated(scores[:1])
    with pytest.raises(DataError, match="--scores: mrpc dev is in two of the paths"):
        refuse_repeated(scores)


@pytest.mark.parametrize("choice", [2, -1])
def test_a_choice_that_is_no_setting_is_refused(choice, tmp_path, places):
    results = json.loads((write_grid(tmp_path / "grid", places) / "results.json").read_text())
    results["sets"]["rte"]["choice"] = choice
    write(tmp_path / "grid/results.json", results)
    with pytest.raises(CheckpointError, match=r"results.json: sets.rte is damaged"):
        read_scores(tmp_path / "grid", **places)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"model": "m", "sets": [{"name": "x"}]}'])
def test_a_file_of_another_form_is_refused(content, tmp_path, places):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(DataError, match=r"x\.json: .*Give an output folder of megabert finetune"):
        read_scores(tmp_path / "x.json", **places)


def test_numbers_that_are_none_are_refused(tmp_path, places):
    folder = write_single(tmp_path / "mrpc", places, mean={"dev": {"accuracy": float("nan")}})
    with pytest.raises(CheckpointError, match=r"results\.json: damaged"):
        read_scores(folder, **places)


def test_every_published_task_has_the_hubs_names_and_a_metric_of_its_own():
    assert {name for name, task in TASKS.items() if not task.published} == {"classification", "regression", "tagging"}
    assert all(task.published[2] in task.metrics for task in TASKS.values() if task.published)
