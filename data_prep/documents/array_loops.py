"""Loops over flat arrays: copying ranges, and following links."""

import numpy as np

from megabert.foundation.compiled import compiled


@compiled
def copy_ranges(source, first, rows, starts, lengths, targets, target):
    """Copy ranges of a flat array.

    Args:
        source: A part of the array that the ranges are of.
        first: Number of the element that the part starts with.
        rows: Which ranges to copy.
        starts: Number of the first element of each range.
        lengths: Elements of each range.
        targets: Index in the target at which each range starts.
        target: Written.
    """
    for row in rows:
        length, start, goal = lengths[row], starts[row] - first, targets[row]
        # Slices first: an index that cannot be negative lets the compiler move many tokens at once.
        here, there = source[start : start + length], target[goal : goal + length]
        for index in range(length):
            there[index] = here[index]


@compiled
def follow(links, ends):
    """Return the positions that are reached from 0 by ``position = links[position]``, in order.

    Args:
        links: From each position to a later one.
        ends: Where the stretch of each position ends (a document); a link past it goes there.
    """
    reached = np.empty(len(links), np.int64)
    position = count = 0
    while position < len(links):
        reached[count] = position
        count += 1
        position = min(links[position], ends[position])
    return reached[:count]
