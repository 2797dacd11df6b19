"""Keyed draws inside compiled loops.

A draw takes one key and gives the same number as in `keyed`, since numba compiles the functions
that numpy runs. This file adds conversions, since a loop's counters are signed, and one function for each
number of words, since a loop cannot take any number of them.
"""

import numpy as np

from megabert.foundation.compiled import inlined, usable_in_loops
from megabert.foundation.randomness.keyed import begin, element, extend, fraction, scale, scramble

for _function in (scramble, begin, extend, element, fraction, scale):
    usable_in_loops(_function)

_LARGEST_BOUND = np.int64(1 << 32)  # of `scale`


@inlined
def mix_2(first, second):
    """Return ``mix(first, second)``."""
    return extend(extend(begin(np.uint64(2)), np.uint64(first)), np.uint64(second))


@inlined
def mix_3(first, second, third):
    """Return ``mix(first, second, third)``."""
    return extend(extend(extend(begin(np.uint64(3)), np.uint64(first)), np.uint64(second)), np.uint64(third))


@inlined
def stream(key, counter):
    """Return element ``counter`` of the sequence that starts at ``key``."""
    return element(key, np.uint64(counter))


@inlined
def uniform(key):
    """Return a number in [0, 1)."""
    return fraction(key)


@inlined
def below(key, bound):
    """Return an integer in [0, bound); above 2**32 by the remainder of all 64 bits."""
    if bound > _LARGEST_BOUND:
        return np.int64(key % np.uint64(bound))
    return np.int64(scale(key, np.uint64(bound)))
