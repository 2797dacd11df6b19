"""Minimal pairs: two sentences that differ in one place, of which one is grammatical (Warstadt et al. 2020, BLiMP).

A model that knows the grammar scores the good sentence higher. A file has BLiMP's form, a JSON object on each line:

    {"sentence_good": "The captain was on the deck.", "sentence_bad": "The captain were on the deck.",
     "UID": "subject_verb_agreement", "linguistics_term": "agreement", "field": "morphology"}
"""

# N pairs

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from megabert.foundation.errors import DataError
from megabert.foundation.json_files import read_json_lines

SETS = {path.stem: path for path in sorted((Path(__file__).parent / "probe_sets").glob("*.jsonl"))}
"""The sets that come with the package, by name."""
GroupBy = Literal["UID", "linguistics_term", "field"]
TIE = 1e-4
"""Scores that are closer, in nats, are equal: sums of float32 numbers differ by as much."""
_Z = 1.959964
"""Quantile of the normal distribution for an interval of 95%."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A pair, with its groups as BLiMP names them."""

    sentence_good: str
    sentence_bad: str
    UID: str = ""
    """The phenomenon; the name of the file if it says none."""
    linguistics_term: str = ""
    field: str = ""


def read_pairs(path: Path) -> list[Pair]:
    """Read minimal pairs.

    Args:
        path: A file, or the name of a set in ``SETS``.

    Raises:
        DataError: The file cannot be read, a line is no pair, its sentences are empty or equal, or the working
            directory has a file with the name of a set.
    """
    if str(path) in SETS and path.is_file():
        remedy = f"For the file, write its whole path, {path.absolute()}; for the set, rename the file."
        raise DataError(f"{path}: is a file here, and a set that comes with the package. {remedy}")
    path = SETS.get(str(path), path)
    remedy = 'A pair has "sentence_good" and "sentence_bad", as in BLiMP.'
    if not path.exists():
        raise DataError(f"{path}: not there. Name a file of pairs, or one of the sets {', '.join(SETS)}.")
    pairs = []
    for number, pair in read_json_lines(path, Pair, remedy=remedy):
        sentences = {pair.sentence_good.strip(), pair.sentence_bad.strip()}
        if len(sentences) < 2 or "" in sentences:
            what = "a sentence is empty" if "" in sentences else "both sentences are the same"
            raise DataError(f"{path}:{number}: {what}. Remove the line, or write two sentences.")
        pairs.append(Pair(**{**asdict(pair), "UID": pair.UID or path.stem}))
    if not pairs:
        raise DataError(f"{path}: has no pairs. {remedy}")
    return pairs


def sentences_of(pairs: Sequence[Pair]) -> list[str]:
    """Return all good sentences, then all bad ones."""
    return [pair.sentence_good for pair in pairs] + [pair.sentence_bad for pair in pairs]


@dataclass(frozen=True, kw_only=True)
class GroupScore:
    """How often the good sentence of a group's pairs has the higher score."""

    group: str
    pairs: int
    right: int
    ties: int
    """Pairs whose scores are equal; each counts as half a right one, as a guess would."""

    @property
    def accuracy(self) -> float:
        """Share of right pairs."""
        return (self.right + self.ties / 2) / self.pairs

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of the accuracy (Wilson 1927)."""
        share, spread = self.accuracy, _Z**2 / self.pairs
        middle = share + spread / 2
        half = _Z * math.sqrt(share * (1 - share) / self.pairs + spread / (4 * self.pairs))
        return max(0.0, (middle - half) / (1 + spread)), min(1.0, (middle + half) / (1 + spread))

    def to_dict(self) -> dict[str, Any]:
        """Return the counts, the accuracy and its interval as JSON holds them."""
        return {**vars(self), "accuracy": self.accuracy, "interval": self.interval}


def score_groups(pairs: Sequence[Pair], scores_2N: NDArray[np.floating], by: GroupBy = "UID") -> list[GroupScore]:
    """Compare the two sentences of each pair.

    Args:
        pairs: The pairs.
        scores_2N: Scores of `sentences_of` the pairs.
        by: The field that names the group of a pair.

    Returns:
        A row for each group, in the order of the pairs, and at the end one for all pairs, named ``all``.
    """
    good_N, bad_N = np.split(np.asarray(scores_2N, np.float64), 2)
    lead_N = good_N - bad_N
    groups = np.array([getattr(pair, by) or "-" for pair in pairs])
    # A list, because a group of the file may be named "all" as well.
    chosen = [(str(name), groups == name) for name in dict.fromkeys(groups)] + [("all", np.ones(len(pairs), bool))]
    return [
        GroupScore(
            group=name,
            pairs=int(is_in_N.sum()),
            right=int((lead_N[is_in_N] > TIE).sum()),
            ties=int((np.abs(lead_N[is_in_N]) <= TIE).sum()),
        )
        for name, is_in_N in chosen
    ]


def describe_probes(metrics: Mapping[str, float]) -> str:
    """Return the accuracy of each probed set in one line; empty without probes.

    Args:
        metrics: Metrics by tag: ``probe/NAME`` for a set, ``probe/NAME/GROUP`` for one of its groups.
    """
    names = [name for name in metrics if name.count("/") == 1 and name.startswith("probe/")]
    return ", ".join(f"{name.removeprefix('probe/')} {100 * metrics[name]:.1f}%" for name in names)
