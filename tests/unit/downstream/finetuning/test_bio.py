"""Scores of entities against conlleval's definition, restated as its walk over tokens."""

import random

import pytest

from megabert.downstream.finetuning.metrics import Entity, entities_of, score_tags
from megabert.downstream.finetuning.task_kinds.tagging import TaggedSentence, Tagging
from megabert.observability.logs import logger

TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def begins(before: str, tag: str) -> bool:
    return tag != "O" and (tag[0] == "B" or before == "O" or before[2:] != tag[2:])


def ends(tag: str, after: str) -> bool:
    return tag != "O" and (after == "O" or after[0] == "B" or after[2:] != tag[2:])


def walk(gold: list[str], predicted: list[str]) -> tuple[int, int, int]:
    """Right, predicted and gold entities, counted by walking over both rows of tags at once."""
    right = predicted_count = gold_count = 0
    inside = False
    gold, predicted = ["O", *gold, "O"], ["O", *predicted, "O"]
    for i in range(1, len(gold)):
        gold_begins, predicted_begins = begins(gold[i - 1], gold[i]), begins(predicted[i - 1], predicted[i])
        gold_ended, predicted_ended = ends(gold[i - 1], gold[i]), ends(predicted[i - 1], predicted[i])
        if inside and gold_ended and predicted_ended:
            right += 1
            inside = False
        elif inside and (gold_ended != predicted_ended or gold[i][2:] != predicted[i][2:]):
            inside = False
        if gold_begins and predicted_begins and gold[i][2:] == predicted[i][2:]:
            inside = True
        gold_count += gold_begins
        predicted_count += predicted_begins
    return right, predicted_count, gold_count


@pytest.mark.parametrize("seed", range(5))
def test_scores_equal_the_walk(seed):
    rng = random.Random(seed)
    gold = [rng.choices(TAGS, k=rng.randint(1, 12)) for _ in range(100)]
    predicted = [[tag if rng.random() < 0.7 else rng.choice(TAGS) for tag in tags] for tags in gold]
    right, predicted_count, gold_count = (sum(row) for row in zip(*map(walk, gold, predicted), strict=True))
    scores = score_tags(gold, predicted, TAGS)
    assert scores["precision"] == pytest.approx(right / predicted_count)
    assert scores["recall"] == pytest.approx(right / gold_count)
    assert scores["f1"] == pytest.approx(2 * right / (predicted_count + gold_count))


def test_both_dialects_give_the_same_entities():
    expected = [Entity("PER", 0, 1), Entity("PER", 2, 2), Entity("LOC", 4, 4)]
    assert entities_of(["B-PER", "I-PER", "B-PER", "O", "B-LOC"]) == expected
    assert entities_of(["I-PER", "I-PER", "B-PER", "O", "I-LOC"]) == expected


def test_tags_without_bio_have_an_accuracy_only():
    assert score_tags([["NN", "VB"]], [["NN", "NN"]], ["NN", "VB"]) == {"accuracy": 0.5}


def test_tag_that_takes_the_f1_away_is_named(caplog, monkeypatch):
    monkeypatch.setattr(logger, "propagate", True)
    gold = [("B-PER", "O"), ("PER", "O")]
    examples = [TaggedSentence(where="t.conll:1", line=1, tokens=("a", "b"), tags=tags) for tags in gold]
    Tagging.labels_of(examples[:1])
    assert not caplog.text
    Tagging.labels_of(examples)
    assert "t.conll: tags that are not BIO: PER. So there is no F1 of entities" in caplog.text


def test_nothing_found_scores_zero():
    assert score_tags([["B-A"]], [["O"]], ["O", "B-A"])["f1"] == 0
