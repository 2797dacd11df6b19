"""KLUE's metrics (Park et al. 2021), as ``metrics/functional.py`` and ``metrics/utils.py`` of KLUE-baseline have them.

YNAT: macro F1. STS: Pearson, and F1 of "3 or more". NLI: accuracy. RE: micro F1 without no_relation, and the mean area
under the precision-recall curves of all relations. NER: macro F1 of entities and of characters. MRC: exact match, and
ROUGE-W over characters. The paper and the script differ in three places, and the script is followed: the F1 of
characters counts O as a class; ROUGE-W is the longest common run of characters, not a weighted subsequence; and the
answers' quotation marks other than ASCII stay.
"""

import re
import string
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher

import numpy as np
from sklearn import metrics

from megabert.downstream.finetuning.metrics import OUTSIDE, entities_of

SIMILAR = 3.0
"""From this similarity on, two sentences of STS mean the same."""
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
# The script lists its marks in a pattern that only matches one of the first with all of the others after it.
_MARKS = re.compile("['\"\u300a\u300b<>\u3008\u3009]\\(\\)\u2018\u2019")


def f1_of_similar(gold: Sequence[float], predicted: Sequence[float]) -> float:
    """Return the F1 of being similar (STS)."""
    a, b = ([value >= SIMILAR for value in values] for values in (gold, predicted))
    return float(metrics.f1_score(a, b, zero_division=0.0))


def micro_f1(gold: Sequence[int], predicted: Sequence[int]) -> float:
    """Return the micro F1 over all labels but the first, which is no_relation (RE)."""
    labels = sorted({*gold, *predicted} - {0})
    if not labels:
        return 0.0
    return float(metrics.f1_score(gold, predicted, labels=labels, average="micro", zero_division=0.0))


def mean_auprc(gold: Sequence[int], probabilities: Sequence[Sequence[float]]) -> float:
    """Return the area under the precision-recall curve of each label against the rest, averaged over labels (RE).

    The area is the trapezoids', so one answer to everything scores about a half. A label that no example has counts 0.

    Args:
        gold: The right label of each example.
        probabilities: The probability of each label, for each example.
    """
    areas = []
    for label, scores in enumerate(np.asarray(probabilities, np.float64).T):
        is_label = np.asarray(gold) == label
        if not is_label.any():
            areas.append(0.0)
            continue
        precision, recall, _ = metrics.precision_recall_curve(is_label, scores)
        areas.append(float(metrics.auc(recall, precision)))
    return sum(areas) / len(areas)


def entity_macro_f1(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> float:
    """Return the F1 of entities, averaged over the types that occur (NER)."""
    found: dict[str, list[int]] = {}  # of each type: right, in gold, predicted
    for x, y in zip(gold, predicted, strict=True):
        right, said = (set(entities_of(tags, is_strict=True)) for tags in (x, y))
        for number, entities in enumerate((right & said, right, said)):
            for entity in entities:
                found.setdefault(entity.kind, [0, 0, 0])[number] += 1
    # F1 is 2 * right / (gold + predicted).
    return sum(2 * right / (a + b) for right, a, b in found.values()) / max(1, len(found))


def tag_macro_f1(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], labels: Sequence[str]) -> float:
    """Return the F1 of tags, averaged over all labels; one that neither side has counts 1 (NER)."""
    a, b = ([tag for tags in side for tag in tags] for side in (gold, predicted))
    return float(metrics.f1_score(a, b, labels=list(labels), average="macro", zero_division=1.0))


def tags_of_characters(tag: str, count: int) -> list[str]:
    """Return the tags of a piece's characters: B- or I- for the first, I- for the others."""
    return [tag, *[tag if tag == OUTSIDE else f"I-{tag[2:]}"] * (count - 1)][:count]


def normalize_klue(answer: str) -> str:
    """Return the form of an answer that is compared (MRC)."""
    return " ".join(_MARKS.sub(" ", answer.lower()).translate(_NO_PUNCTUATION).split())


def rouge_w(predicted: str, gold: str) -> float:
    """Return the F1 of the longest common run of characters of two normalised answers (MRC)."""
    if not gold:
        return float(not predicted)
    run = SequenceMatcher(None, predicted, gold).find_longest_match().size
    return 2 * run / (len(predicted) + len(gold))


def score_klue_answers(predicted: Mapping[str, str], gold: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Return exact match and ROUGE-W, means over questions; the right answer that fits best counts (MRC).

    Args:
        predicted: The answer to each question; "" says that there is none.
        gold: The right answers of each question; one that cannot be answered has none.
    """
    exact, overlap = [], []
    for identity, answers in gold.items():
        guess, right = normalize_klue(predicted[identity]), [normalize_klue(answer) for answer in answers] or [""]
        exact.append(float(guess in right))
        overlap.append(max(rouge_w(guess, answer) for answer in right))
    count = max(1, len(gold))
    return {"exact": sum(exact) / count, "rouge_w": sum(overlap) / count}
