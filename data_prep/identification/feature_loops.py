"""The most likely language of a text by py3langid's model, a naive Bayes classifier (Lui & Baldwin 2012, section 3)."""

import numpy as np

from megabert.foundation.compiled import compiled

LONGEST_FEATURE = 8
"""Bytes of a feature at most. A state is the longest end of the text that a feature begins with, so after this number
of bytes it no longer matters where a walk began."""
WEIGHT_UNIT, LOG_UNIT = 2.0**-9, 2.0**-20
"""Values of 1 in the integers of weights and of logarithms."""
_WALKS = 16


@compiled
def find_most_likely(text, rows, moves, outputs, weights, priors, logs, counts):
    """Return the language with the largest score; -1 if rounding decides, or if the text has no feature.

    A score is the prior and, for each feature, its weight times log(1 + its count). Features are byte sequences that
    occur in few languages.

    Args:
        text: Its UTF-8.
        rows: Row of each state in ``moves``.
        moves: The next state for each of 256 bytes, row by row.
        outputs: The feature that ends at each state; -1 if none does.
        weights: Shape (features, languages), in units of ``WEIGHT_UNIT``.
        priors: Of each language, in units of both.
        logs: log(1 + count) of each count, in units of ``LOG_UNIT``.
        counts: 0 for every feature; so again afterwards.
    """
    features, number, total = np.empty(len(text), np.int32), 0, np.int64(0)
    # Each step waits for the automaton in memory, so walks through parts of the text take turns.
    size, states = -(-len(text) // _WALKS), np.zeros(_WALKS, np.int64)
    for step in range(-LONGEST_FEATURE, size):
        for walk in range(_WALKS):
            index = walk * size + step
            if 0 <= index < len(text):
                states[walk] = moves[(np.int64(rows[states[walk]]) << 8) + text[index]]
                feature = outputs[states[walk]]
                if step >= 0 and feature >= 0:
                    features[number] = feature
                    number += counts[feature] == 0
                    counts[feature] += 1
    scores = priors.copy()
    for place in range(number):
        feature = features[place]
        log = np.int64(logs[min(counts[feature], len(logs) - 1)])
        for language in range(len(scores)):
            scores[language] += log * np.int64(weights[feature, language])
        total += log
        counts[feature] = 0
    best = scores.argmax()
    largest, scores[best] = scores[best], scores.min()
    # A weight is half a unit off at most, and sums in float32 lose up to 2^-24 for each term.
    return best if number and largest - scores.max() > total * (number + 2048) >> 10 else -1
