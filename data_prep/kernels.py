"""Loops that several stages share: copying pieces of flat arrays, following steps from place to place."""

import numpy as np

from megabert.compiled import compiled


@compiled
def copy_ranges(source, starts, lengths, target, places):
    """Copy ``source[start : start + length]`` to ``target`` from ``place`` on, for each piece."""
    for piece in range(len(starts)):
        length = lengths[piece]
        # Slices first: an index that cannot be negative lets the compiler move many tokens at once.
        here, there = source[starts[piece] : starts[piece] + length], target[places[piece] : places[piece] + length]
        for index in range(length):
            there[index] = here[index]


@compiled
def follow(steps, ends):
    """Return the places reached from 0 by ``place = steps[place]``; a step at or past ``ends[place]`` goes there."""
    reached = np.empty(len(steps), np.int64)
    place = made = 0
    while place < len(steps):
        reached[made] = place
        made += 1
        place = min(steps[place], ends[place])
    return reached[:made]
