"""SQuAD's and KorQuAD's scores against their published definitions, restated here another way."""

import random
import re

import pytest

from megabert.downstream.finetuning.metrics import best_null_threshold, f1, normalize, score_answers

PIECES = ["the", "A", "an", "cat", "cat", "Dog's", "U.S.", "...", "42", "the-end", "", " ", "\t", "theory"]
PIECES += ["\u00e9t\u00e9", "\u2019"]
KOREAN = ["\uc11c\uc6b8", "\uc11c\uc6b8\uc5d0\uc11c", "\u300a\ubd04\u300b", "1948\ub144", "(\ubd04)"]
KOREAN += ["\u2018\uac00\u2019", "...", "A", "", " "]


def spelled_out(answer: str) -> list[str]:
    """The words that remain: lower-cased, ASCII punctuation deleted, then articles that stand alone deleted."""
    letters = [
        c for c in answer.lower() if not (c.isascii() and not c.isalnum() and not c.isspace() and c.isprintable())
    ]
    without = re.sub(r"(?<!\w)(?:a|an|the)(?!\w)", " ", "".join(letters))
    return without.split()


def korean_letters(answer: str) -> list[str]:
    for mark in "'\"\u300a\u300b<>\u3008\u3009()\u2018\u2019":
        answer = answer.replace(mark, " ")
    answer = "".join(
        c for c in answer.lower() if not (c.isascii() and c.isprintable() and not c.isalnum() and c != " ")
    )
    return [c for word in answer.split() for c in word]


def overlap(predicted: list[str], gold: list[str]) -> float:
    """F1 of two bags, by crossing off."""
    left, shared = list(gold), 0
    for word in predicted:
        if word in left:
            left.remove(word)
            shared += 1
    if not shared:
        return 0.0
    precision, recall = shared / len(predicted), shared / len(gold)
    return 2 * precision * recall / (precision + recall)


def random_answer(rng: random.Random, pieces: list[str]) -> str:
    return rng.choice([" ", "  ", ""]).join(rng.choices(pieces, k=rng.randint(0, 5)))


@pytest.mark.parametrize("seed", range(3))
def test_squad_scores_equal_the_definition(seed):
    rng = random.Random(seed)
    questions = {str(i): tuple(random_answer(rng, PIECES) for _ in range(rng.randint(1, 4))) for i in range(200)}
    predicted = {i: rng.choice([*answers, random_answer(rng, PIECES)]) for i, answers in questions.items()}
    exact = [max(spelled_out(predicted[i]) == spelled_out(a) for a in answers) for i, answers in questions.items()]
    words = [
        max(overlap(spelled_out(predicted[i]), spelled_out(a)) for a in answers) for i, answers in questions.items()
    ]
    scores = score_answers(predicted, questions)
    assert scores["exact"] == pytest.approx(sum(exact) / 200)
    assert scores["f1"] == pytest.approx(sum(words) / 200)


@pytest.mark.parametrize("seed", range(3))
def test_squad2_scores_equal_the_definition(seed):
    rng = random.Random(seed)
    questions = {str(i): tuple(random_answer(rng, PIECES) for _ in range(rng.randint(0, 3))) for i in range(200)}
    predicted = {i: rng.choice(["", *answers, random_answer(rng, PIECES)]) for i, answers in questions.items()}
    total, answerable = 0.0, []
    for identity, answers in questions.items():
        real = [spelled_out(a) for a in answers if spelled_out(a)] or [[]]
        given = spelled_out(predicted[identity])
        best = max(float(given == a) if not a or not given else overlap(given, a) for a in real)
        total += best
        answerable += [best] if answers else []
    scores = score_answers(predicted, questions, allows_none=True)
    assert scores["f1"] == pytest.approx(total / 200)
    assert scores["answerable_f1"] == pytest.approx(sum(answerable) / len(answerable))


@pytest.mark.parametrize("seed", range(3))
def test_korean_scores_count_characters(seed):
    rng = random.Random(seed)
    for _ in range(200):
        gold, predicted = random_answer(rng, KOREAN), random_answer(rng, KOREAN)
        assert f1(predicted, gold, "ko") == pytest.approx(overlap(korean_letters(predicted), korean_letters(gold)))


def test_particle_costs_korean_answers_little():
    assert f1("\uc11c\uc6b8\uc5d0\uc11c", "\uc11c\uc6b8", "ko") == pytest.approx(2 / 3)
    assert f1("\uc11c\uc6b8\uc5d0\uc11c", "\uc11c\uc6b8", "en") == 0
    assert normalize("\u300a\uc11c\uc6b8\u300b", "ko") == normalize("\uc11c\uc6b8", "ko")


@pytest.mark.parametrize("seed", range(20))
def test_null_threshold_is_the_best_one(seed):
    rng = random.Random(seed)
    questions = {str(i): rng.choice([("cat",), (), ("the",)]) for i in range(12)}
    predicted = {i: rng.choice(["cat", "dog", "red cat", ""]) for i in questions}
    odds = {i: float(rng.randint(-3, 3)) for i in questions}

    def f1_at(threshold: float) -> float:
        chosen = {i: "" if odds[i] > threshold else predicted[i] for i in odds}
        return score_answers(chosen, questions, allows_none=True)["f1"]

    best = max(f1_at(threshold) for threshold in [-10, *odds.values()])
    assert f1_at(best_null_threshold(predicted, odds, questions)) == pytest.approx(best)
