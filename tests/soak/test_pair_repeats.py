"""How often a side occurs again, word for word, in a pass, and what that tells of the label.

One instance shows nothing of it. But a model that remembers texts over an epoch can count them, so a text must occur as
often with one label as with the other.
"""

from collections import Counter

import numpy as np
import pytest
from soak.test_pair_probes import CORPORA, pairs_of

OCCURRENCES = 3  # and more
MOST_REPEATED = 0.08
"""Share of Bs that occur again; about that of `google`. Texts that say the same word for word remain."""


def words_of(text, start, length):
    """Each side's tokens, as something that can be counted."""
    return [text.ids[first : first + size].tobytes() for first, size in zip(start, length, strict=True)]


def repeats(folder, length, pairing, rows=1) -> dict[str, float]:
    """Share of repeated As and Bs in the first pass, and label 1 among sides by how often they occur as such."""
    text, (a_start, a_length, b_start, b_length, label) = pairs_of(folder, length, pairing, rows)
    result = {"rows": len(label), "label 1": label.mean()}
    for name, start, size in (("A", a_start, a_length), ("B", b_start, b_length)):
        words = words_of(text, start, size)
        counts = Counter(words)
        times = np.minimum([counts[side] for side in words], OCCURRENCES)
        result[f"{name} repeated"] = float(np.mean(times > 1))
        result |= {f"{name} {n} times": float(label[times == n].mean()) for n in np.unique(times)}
    # The text of B elsewhere in the pass, as any part of any other instance: its first token is looked for.
    used = np.zeros(len(text.ids) + 1, np.int64)
    for start, size in ((a_start, a_length), (b_start, b_length)):
        np.add.at(used, start, 1)
        np.add.at(used, start + size, -1)
    is_elsewhere = np.cumsum(used)[b_start] > 1
    result["B elsewhere"] = float(is_elsewhere.mean())
    result |= {f"B elsewhere: {value}": float(label[is_elsewhere == value].mean()) for value in np.unique(is_elsewhere)}
    return result


if __name__ == "__main__":
    import sys
    from pathlib import Path

    for folder in sys.argv[1:]:
        for pairing in ("balanced", "google"):
            for length in (128, 512):
                scores = repeats(Path(folder), length, pairing)
                print(Path(folder).name, length, pairing, {name: round(score, 3) for name, score in scores.items()})
