"""Entities in BIO tags and their F1, by the rules of the CoNLL-2000 and 2003 shared tasks (Tjong Kim Sang 2003).

An entity (the shared tasks also say chunk) is a type with its first and last token, and counts if all three are right.
B- begins an entity. So does I- after O or after another type, hence both IOB1 and IOB2 are read. The rules are written
out here because seqeval, the library for them, has had no release since 2020; the tests compare with it.
"""

from collections.abc import Sequence
from typing import NamedTuple

OUTSIDE = "O"


class Entity(NamedTuple):
    """Consecutive tokens with one type, from the first to the last."""

    kind: str
    first: int
    last: int


def is_bio(tags: Sequence[str]) -> bool:
    """Tell whether all tags are O, B-type or I-type."""
    return all(tag == OUTSIDE or tag[:2] in ("B-", "I-") for tag in tags)


def entities_of(tags: Sequence[str]) -> list[Entity]:
    """Return the entities of a sentence, in order."""
    entities: list[Entity] = []
    for index, tag in enumerate(tags):
        if tag == OUTSIDE:
            continue
        prefix, kind = tag[0], tag[2:]
        # I- continues the entity that ended at the previous token, if it has the same type.
        is_inside = prefix == "I" and entities and entities[-1].kind == kind and entities[-1].last == index - 1
        first = entities.pop().first if is_inside else index
        entities.append(Entity(kind, first, index))
    return entities


def score_tags(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return precision, recall and F1 of entities and the accuracy of tags; the accuracy alone if tags are not BIO.

    Args:
        gold: The right tags of each sentence.
        predicted: The predicted tags, as many in each sentence.
    """
    pairs = [(a, b) for x, y in zip(gold, predicted, strict=True) for a, b in zip(x, y, strict=True)]
    scores = {"accuracy": sum(a == b for a, b in pairs) / max(1, len(pairs))}
    if not all(is_bio(tags) for tags in (*gold, *predicted)):
        return scores
    gold_entities = [set(entities_of(tags)) for tags in gold]
    predicted_entities = [set(entities_of(tags)) for tags in predicted]
    right = sum(len(a & b) for a, b in zip(gold_entities, predicted_entities, strict=True))
    precision = right / max(1, sum(map(len, predicted_entities)))
    recall = right / max(1, sum(map(len, gold_entities)))
    f1 = 2 * precision * recall / (precision + recall) if right else 0.0
    return {"f1": f1, "precision": precision, "recall": recall, **scores}
