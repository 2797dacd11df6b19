"""How often a side occurs again, word for word, in a pass, and how far that gives the label away.

One instance shows nothing of it. But a model that remembers texts over an epoch can count them, so a text must occur as
often with one label as with the other.
"""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from soak.test_pair_probes import CORPORA, built, pairs_of

MANY = 3  # occurrences and more
MOST_REPEATED = 0.03  # short sentences that a text says again

pytestmark = pytest.mark.soak
__all__ = ["built"]


def repeats(folder: Path, length: int, pairing: str) -> dict[str, float]:
    """Shares of sides that occur again in the first pass, and of label 1 among sides by how often they occur."""
    text, (a_start, a_length, b_start, b_length, label) = pairs_of(folder, length, pairing, least=1)
    result = {"rows": len(label), "label 1": float(label.mean())}
    used = np.zeros(len(text.ids) + 1, np.int64)
    for name, start, size in (("A", a_start, a_length), ("B", b_start, b_length)):
        words = [text.ids[first : first + count].tobytes() for first, count in zip(start, size, strict=True)]
        counts = Counter(words)
        times = np.minimum([counts[side] for side in words], MANY)
        result[f"{name} repeated"] = float(np.mean(times > 1))
        for number in np.unique(times):
            result[f"{name} {number} times: label 1"] = float(label[times == number].mean())
            result[f"{name} {number} times"] = int(np.count_nonzero(times == number))
        np.add.at(used, start, 1)
        np.add.at(used, start + size, -1)
    # The beginning of B as any part of any other instance.
    is_elsewhere = np.cumsum(used)[b_start] > 1
    result |= {"B elsewhere": float(is_elsewhere.mean()), "Bs elsewhere": int(np.count_nonzero(is_elsewhere))}
    for value in np.unique(is_elsewhere):
        name = "B elsewhere: label 1" if value else "B nowhere else: label 1"
        result[name] = float(label[is_elsewhere == value].mean())
    return result


@pytest.mark.parametrize("length", [128, 512])
@pytest.mark.parametrize("corpus", CORPORA, ids=lambda path: path.stem)
def test_occurrences_of_a_side_tell_nothing(corpus, length, built):
    scores = repeats(built(corpus), length, "balanced")
    print(corpus.stem, length, {name: round(score, 3) for name, score in scores.items()})
    assert max(scores["A repeated"], scores["B repeated"]) < MOST_REPEATED
    assert scores["B elsewhere"] < 3 * MOST_REPEATED
    assert abs(scores["A 1 times: label 1"] - 0.5) < 0.01
    assert abs(scores["B 1 times: label 1"] - 0.5) < 0.01
    assert abs(scores["B nowhere else: label 1"] - 0.5) < 0.01
