"""How often a model scores the good sentence of a minimal pair higher, by group, as a table and as JSON."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from megabert.downstream.inspection.pseudo_likelihood import Scores, SentenceScorer
from megabert.foundation.text_tables import render_table
from megabert.training.probes.minimal_pairs import GroupBy, GroupScore, Pair, score_groups, sentences_of

_AT_ONCE = 512
"""Pairs whose sentences are packed together."""


@dataclass(frozen=True, kw_only=True)
class PairScores:
    """The scores of a file or set."""

    name: str
    pairs: list[Pair]
    scores: Scores
    """Scores of `sentences_of` the pairs."""
    windowed: int
    """Sentences that are longer than the model's positions."""

    def groups(self, by: GroupBy) -> list[GroupScore]:
        """Return the groups' scores, and all pairs' as the last."""
        return score_groups(self.pairs, self.scores.scores_S, by)

    @property
    def pieces_apart(self) -> float:
        """Mean of the pieces of the bad sentence minus the pieces of the good one."""
        good_N, bad_N = np.split(self.scores.counts_S, 2)
        return float((bad_N - good_N).mean())

    def to_dict(self) -> dict[str, Any]:
        """Return the accuracies by each kind of group as JSON holds them."""
        groups = {by: [row.to_dict() for row in self.groups(by)[:-1]] for by in get_args(GroupBy)}
        total = self.groups("UID")[-1].to_dict()
        return {"name": self.name, **total, "pieces_apart": self.pieces_apart, "windowed": self.windowed, **groups}


def score_pairs(scorer: SentenceScorer, sets: Mapping[str, list[Pair]]) -> list[PairScores]:
    """Score minimal pairs.

    Args:
        scorer: The model.
        sets: Pairs by the name of their file or set.
    """
    results = []
    for name, pairs in sets.items():
        texts = sentences_of(pairs)
        parts = [scorer.score(texts[start : start + 2 * _AT_ONCE]) for start in range(0, len(texts), 2 * _AT_ONCE)]
        scores = Scores(*map(np.concatenate, zip(*parts, strict=True)))
        windowed = int((scores.counts_S + 2 > scorer.longest).sum())
        results.append(PairScores(name=name, pairs=pairs, scores=scores, windowed=windowed))
    return results


def render_pairs(result: PairScores, by: GroupBy) -> str:
    """Return a table with a row for each group, and one for all."""
    rows = [
        (
            row.group,
            f"{row.pairs:,}",
            f"{100 * row.accuracy:.1f}",
            " to ".join(f"{100 * share:.1f}" for share in row.interval),
            f"{row.ties:,}",
        )
        for row in result.groups(by)
    ]
    return render_table(rows, headers=(result.name, "pairs", "accuracy %", "95% interval", "ties"), align="lrrrr")
