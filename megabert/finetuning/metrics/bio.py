"""Chunks in BIO tags and their F1, by the rules of the CoNLL-2000 and 2003 shared tasks (Tjong Kim Sang 2003).

A chunk is a type with its first and last token, and counts if all three are right. B- begins a chunk; so does I- after
O or after another type, so both IOB1 and IOB2 are read. Written here because seqeval, the library for it, has had no
release since 2020.
"""

from collections.abc import Sequence
from typing import NamedTuple

OUTSIDE = "O"


class Entity(NamedTuple):
    """A named stretch of tokens."""

    kind: str
    first: int
    last: int


def is_bio(tags: Sequence[str]) -> bool:
    """Tell whether all tags are O, B-type or I-type."""
    return all(tag == OUTSIDE or tag[:2] in ("B-", "I-") for tag in tags)


def chunks_of(tags: Sequence[str]) -> list[Entity]:
    """Return the chunks of a sentence, in order."""
    chunks: list[Entity] = []
    for index, tag in enumerate(tags):
        if tag == OUTSIDE:
            continue
        prefix, kind = tag[0], tag[2:]
        goes_on = prefix == "I" and chunks and chunks[-1].kind == kind and chunks[-1].last == index - 1
        first = chunks.pop().first if goes_on else index
        chunks.append(Entity(kind, first, index))
    return chunks


def score_tags(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return precision, recall and F1 of chunks, and the accuracy of tags; without BIO tags only the accuracy.

    Args:
        gold: Tags of each sentence.
        predicted: The same numbers of tags.
    """
    pairs = [(a, b) for x, y in zip(gold, predicted, strict=True) for a, b in zip(x, y, strict=True)]
    scores = {"accuracy": sum(a == b for a, b in pairs) / max(1, len(pairs))}
    if not all(is_bio(tags) for tags in (*gold, *predicted)):
        return scores
    wanted = [set(chunks_of(tags)) for tags in gold]
    found = [set(chunks_of(tags)) for tags in predicted]
    right = sum(len(a & b) for a, b in zip(wanted, found, strict=True))
    precision = right / max(1, sum(map(len, found)))
    recall = right / max(1, sum(map(len, wanted)))
    f1 = 2 * precision * recall / (precision + recall) if right else 0.0
    return {"f1": f1, "precision": precision, "recall": recall, **scores}
