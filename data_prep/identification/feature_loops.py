"""The walk of py3langid's automaton over the bytes of a text (Lui & Baldwin 2012, section 3)."""

import numpy as np

from megabert.foundation.compiled import compiled

LONGEST_FEATURE = 8
"""Bytes of a feature at most. A state is the longest end of the text that a feature begins with, so after this number
of bytes it no longer matters where a walk began."""
_WALKS = 8
_SIGN, _REST = np.uint32(0x8000), np.uint32(0x7FFF)
_BIAS = np.float32(2.0**112)
"""Exponents of float16 are counted from -15, of float32 from -127. A product with a power of 2 rounds nothing."""


@compiled
def count_features(text, rows, moves, outputs, slots):
    """Count the features of a text, which are byte sequences that occur in few languages.

    Args:
        text: Its UTF-8.
        rows: Row of each state in ``moves``.
        moves: The next state for each of 256 bytes, row by row.
        outputs: The feature that ends at each state; -1 if none does.
        slots: -1 for every feature; so again afterwards.

    Returns:
        The features in the order in which they first occur, and how often each occurs.
    """
    features, counts = np.empty(len(text), np.int64), np.empty(len(text), np.int64)
    # Each step waits for the automaton in memory, so walks through parts of the text take turns.
    size = -(-len(text) // _WALKS)
    states, found = np.zeros(_WALKS, np.int64), np.empty(len(text), np.int32)
    for step in range(-LONGEST_FEATURE, size):
        for walk in range(_WALKS):
            index = walk * size + step
            if 0 <= index < len(text):
                states[walk] = moves[(np.int64(rows[states[walk]]) << 8) + text[index]]
                if step >= 0:
                    found[index] = outputs[states[walk]]
    number = 0
    for feature in found:
        if feature >= 0:
            if slots[feature] < 0:
                slots[feature], features[number], counts[number] = number, feature, 0
                number += 1
            counts[slots[feature]] += 1
    for index in range(number):
        slots[features[index]] = -1
    return features[:number], counts[:number]


@compiled
def gather_weights(halves, features):
    """Return the weights of features, shape (features, languages), as float32: exactly, in a quarter of numpy's time.

    Args:
        halves: The bits of all weights in float16, of which none is infinite.
        features: The rows to return.
    """
    bits = np.empty((len(features), halves.shape[1]), np.uint32)
    weights = bits.view(np.float32)
    for row in range(len(features)):
        feature = features[row]
        for column in range(halves.shape[1]):
            half = np.uint32(halves[feature, column])
            bits[row, column] = (half & _SIGN) << np.uint32(16) | (half & _REST) << np.uint32(13)
        for column in range(halves.shape[1]):
            weights[row, column] *= _BIAS
    return weights
