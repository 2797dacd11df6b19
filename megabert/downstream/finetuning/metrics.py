"""The official metrics of the tasks: labels and scores through scikit-learn and SciPy, answers and tags by hand.

Answers: exact match and F1 of SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018), and of KorQuAD over characters. They are
compared in a normalised form. English: lower case, no ASCII punctuation, no articles, single spaces; F1 counts words.
Korean (Lim et al. 2019): lower case, no ASCII punctuation and no quotation marks or brackets of CJK text; F1 counts
characters, because particles are written onto the word.

Tags: entities in BIO and their F1, by the rules of the CoNLL-2000 and 2003 shared tasks (Tjong Kim Sang 2003). An
entity (the shared tasks also say chunk) is a type with its first and last token, and counts if all three are right. B-
begins an entity. So does I- after O or after another type, hence both IOB1 and IOB2 are read. The rules are written out
here because seqeval, the library for them, has had no release since 2020; the tests compare with it.

KLUE (Park et al. 2021), as ``metrics/functional.py`` and ``metrics/utils.py`` of KLUE-baseline have it. YNAT: macro F1.
STS: Pearson, and F1 of "3 or more". NLI: accuracy. RE: micro F1 without no_relation, and the mean area under the
precision-recall curves of all relations. NER: macro F1 of entities and of characters. MRC: exact match, and ROUGE-W
over characters. The paper and the script differ in three places, and the script is followed: the F1 of characters
counts O as a class; ROUGE-W is the longest common run of characters, not a weighted subsequence; and the answers'
quotation marks other than ASCII stay.
"""

import math
import re
import string
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Literal, NamedTuple

import numpy as np
from scipy import stats
from sklearn import metrics


def _correlation(function: Callable[..., tuple[float, float]]) -> Callable[[Sequence[float], Sequence[float]], float]:
    def score(gold: Sequence[float], predicted: Sequence[float]) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", stats.ConstantInputWarning)
            value = float(function(gold, predicted)[0]) if len(gold) > 1 else math.nan
        # Constant predictions correlate with nothing.
        return 0.0 if math.isnan(value) else value

    return score


Language = Literal["en", "ko"]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
# KorQuAD's script turns each of these into a space before it drops ASCII punctuation.
_KOREAN_MARKS = str.maketrans(dict.fromkeys("'\"<>()\u300a\u300b\u3008\u3009\u2018\u2019", " "))


Gold = Mapping[str, Sequence[str]]
"""The right answers of each question; one that cannot be answered has none."""


def units(answer: str, language: Language) -> list[str]:
    """Return the words, or Korean characters, that F1 counts."""
    words = normalize(answer, language).split()
    return list("".join(words)) if language == "ko" else words


def normalize(answer: str, language: Language) -> str:
    """Return the form that an exact match compares."""
    if language == "ko":
        answer = answer.translate(_KOREAN_MARKS)
    answer = answer.lower().translate(_NO_PUNCTUATION)
    if language == "en":
        answer = _ARTICLES.sub(" ", answer)
    return " ".join(answer.split())


def f1(predicted: str, gold: str, language: Language = "en", *, allows_none: bool = False) -> float:
    """Return the F1 of the units that two answers share; by SQuAD 2.0's rules, two answers without units are equal."""
    # A unit that one answer repeats counts as often as the other has it, as in the official script.
    a, b = units(predicted, language), units(gold, language)
    if allows_none and not (a and b):
        return float(a == b)
    shared = sum((Counter(a) & Counter(b)).values())
    return 2 * shared / (len(a) + len(b)) if shared else 0.0


def score_answers(
    predicted: Mapping[str, str], gold: Gold, language: Language = "en", *, allows_none: bool = False
) -> dict[str, float]:
    """Return exact match and F1, means over questions from 0 to 1; the right answer that fits best counts.

    Args:
        predicted: The answer to each question; "" says that there is none.
        gold: The questions that count.
        language: Language of the answers, which decides how they are compared.
        allows_none: Whether the rules of SQuAD 2.0 hold: "" is right if a question has no answer, and ``answerable_*``
            and ``unanswerable_*`` score the two kinds of questions alone.
    """
    exact, overlap = _best_scores(predicted, gold, language, allows_none)
    scores = {"exact": _mean(exact), "f1": _mean(overlap)}
    if allows_none:
        for name, has_answer in (("answerable", True), ("unanswerable", False)):
            part = [i for i, answers in enumerate(gold.values()) if bool(answers) is has_answer]
            scores[f"{name}_exact"] = _mean([exact[i] for i in part])
            scores[f"{name}_f1"] = _mean([overlap[i] for i in part])
    return scores


def best_null_threshold(
    predicted: Mapping[str, str], null_odds: Mapping[str, float], gold: Gold, language: Language = "en"
) -> float:
    """Return the threshold of "no answer" with the best F1; a question whose odds are above it gets no answer.

    Args:
        predicted: The best answer of each question.
        null_odds: For each question, by how much the score of "no answer" is above the best answer's.
        gold: The questions that count.
        language: Language of the answers, which decides how they are compared.
    """
    # What answering gains over keeping silent, question by question. Raising the threshold answers one question more,
    # in the order of the odds: the best threshold is where the running sum of the gains is greatest.
    _, answered = _best_scores(predicted, gold, language, True)
    _, silent = _best_scores(dict.fromkeys(predicted, ""), gold, language, True)
    gain = {identity: a - b for identity, a, b in zip(gold, answered, silent, strict=True)}
    order = sorted(gain, key=null_odds.__getitem__)
    threshold, best, total = null_odds[order[0]] - 1.0, 0.0, 0.0  # below all: nothing is answered
    for index, identity in enumerate(order):
        total += gain[identity]
        is_last_of_equals = index + 1 == len(order) or null_odds[order[index + 1]] > null_odds[identity]
        if total > best and is_last_of_equals:
            best, threshold = total, null_odds[identity]
    return threshold


def _best_scores(
    predicted: Mapping[str, str], gold: Gold, language: Language, allows_none: bool
) -> tuple[list[float], list[float]]:
    exact, overlap = [], []
    for identity, answers in gold.items():
        counted = answers
        if allows_none:  # answers that normalise to nothing do not count, unless there is no other
            counted = [answer for answer in answers if normalize(answer, language)] or [""]
        guess = predicted[identity]
        exact.append(float(normalize(guess, language) in {normalize(answer, language) for answer in counted}))
        overlap.append(max(f1(guess, answer, language, allows_none=allows_none) for answer in counted))
    return exact, overlap


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))


OUTSIDE = "O"
"""Tag of a word that belongs to no entity."""


class Entity(NamedTuple):
    """Consecutive tokens with one type, from the first to the last."""

    kind: str
    first: int
    last: int


def entities_of(tags: Sequence[str], *, is_strict: bool = False) -> list[Entity]:
    """Return the entities of a sentence, in order.

    Args:
        tags: The tags of its tokens.
        is_strict: Whether only B- begins an entity, and an I- that continues none is no part of any.
    """
    entities: list[Entity] = []
    for index, tag in enumerate(tags):
        if tag == OUTSIDE:
            continue
        prefix, kind = tag[0], tag[2:]
        # I- continues the entity that ended at the previous token, if it has the same type.
        is_inside = prefix == "I" and entities and entities[-1].kind == kind and entities[-1].last == index - 1
        if prefix == "I" and is_strict and not is_inside:
            continue
        first = entities.pop().first if is_inside else index
        entities.append(Entity(kind, first, index))
    return entities


def not_bio(tags: Iterable[str]) -> list[str]:
    """Return the tags that are neither O nor begin with B- or I-."""
    return [tag for tag in tags if tag != OUTSIDE and tag[:2] not in ("B-", "I-")]


def score_tags(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], labels: Iterable[str]
) -> dict[str, float]:
    """Return precision, recall and F1 of entities and the accuracy of tags; the accuracy alone if tags are not BIO.

    Args:
        gold: The right tags of each sentence.
        predicted: The predicted tags, as many in each sentence.
        labels: All tags that there may be, predicted or not.
    """
    pairs = [(a, b) for x, y in zip(gold, predicted, strict=True) for a, b in zip(x, y, strict=True)]
    scores = {"accuracy": sum(a == b for a, b in pairs) / max(1, len(pairs))}
    if not_bio(labels):
        return scores
    # An entity is right if a predicted one has its type, its first and its last token; parts of it count for nothing.
    gold_entities = [set(entities_of(tags)) for tags in gold]
    predicted_entities = [set(entities_of(tags)) for tags in predicted]
    right = sum(len(a & b) for a, b in zip(gold_entities, predicted_entities, strict=True))
    precision = right / max(1, sum(map(len, predicted_entities)))
    recall = right / max(1, sum(map(len, gold_entities)))
    mean = 2 * precision * recall / (precision + recall) if right else 0.0
    return {"f1": mean, "precision": precision, "recall": recall, **scores}


SIMILAR = 3.0
"""From this similarity on, two sentences of STS mean the same."""
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
    pairs = [
        (normalize_klue(predicted[identity]), [normalize_klue(answer) for answer in answers] or [""])
        for identity, answers in gold.items()
    ]
    exact = [float(guess in right) for guess, right in pairs]
    overlap = [max(rouge_w(guess, answer) for answer in right) for guess, right in pairs]
    return {"exact": _mean(exact), "rouge_w": _mean(overlap)}


METRICS: dict[str, Callable[[Sequence, Sequence], float]] = {
    "accuracy": lambda gold, predicted: float(metrics.accuracy_score(gold, predicted)),
    "f1": lambda gold, predicted: float(metrics.f1_score(gold, predicted, pos_label=1, zero_division=0.0)),
    "macro_f1": lambda gold, predicted: float(metrics.f1_score(gold, predicted, average="macro", zero_division=0.0)),
    "f1_of_similar": f1_of_similar,
    "micro_f1": micro_f1,
    "mcc": lambda gold, predicted: float(metrics.matthews_corrcoef(gold, predicted)),
    "pearson": _correlation(stats.pearsonr),
    "spearman": _correlation(stats.spearmanr),
}
"""Each metric's function of gold and predicted values. Labels are given as ids; 1 is the positive one of ``f1``.

`mean_auprc` is none of these: it asks for probabilities."""
