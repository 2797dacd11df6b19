"""Loops that several stages share: copying pieces of flat arrays, following steps from place to place."""

import numpy as np

from megabert.compiled import compiled

_1, _11, _SORTED_BITS, _DIGIT = (np.uint64(value) for value in (1, 11, 33, (1 << 11) - 1))


@compiled
def copy_ranges(source, first, rows, pieces, target):
    """Copy pieces of a flat array.

    Args:
        source: Part of what the pieces are of.
        first: Number of its first element.
        rows: Which pieces to copy.
        pieces: First element and length of each piece, and where it goes in the target.
        target: Written.
    """
    starts, lengths, places = pieces
    for row in rows:
        length, start, place = lengths[row], starts[row] - first, places[row]
        # Slices first: an index that cannot be negative lets the compiler move many tokens at once.
        here, there = source[start : start + length], target[place : place + length]
        for index in range(length):
            there[index] = here[index]


@compiled
def by_part(numbers, borders):
    """Return the rows ordered by the part that their numbers lie in, and where each part's rows begin in that order.

    Args:
        numbers: From the first border to below the last.
        borders: First number of each part, and the end of the last.
    """
    parts, ends = np.empty(len(numbers), np.int64), np.zeros(len(borders) + 1, np.int64)
    for row in range(len(numbers)):
        low, high = 0, len(borders) - 1
        while high - low > 1:
            middle = (low + high) >> 1
            if borders[middle] <= numbers[row]:
                low = middle
            else:
                high = middle
        parts[row] = low
        ends[low + 2] += 1
    ends = np.cumsum(ends)
    order = np.empty(len(numbers), np.int64)
    for row in range(len(numbers)):
        order[ends[parts[row] + 1]] = row
        ends[parts[row] + 1] += 1
    return order, ends[:-1]


@compiled
def order_of(numbers):
    """Return the rows in ascending order of their numbers, equal ones by row; several times as fast as `numpy.argsort`.

    Args:
        numbers: Not negative; below 2**33, or hashes: what the radix sort of the upper 33 bits leaves is done one by
            one.
    """
    most = np.uint64(0)
    for number in numbers:
        most = max(most, np.uint64(number))
    low = np.uint64(0)
    while most >> low >> _SORTED_BITS:
        low += _1
    words, rows = numbers.astype(np.uint64), np.arange(len(numbers))
    other_words, other_rows = np.empty_like(words), np.empty_like(rows)
    places = np.empty(1 << 11, np.int64)
    shift = low
    while shift < 64 and most >> shift:
        places[:] = 0
        for word in words:
            places[(word >> shift) & _DIGIT] += 1
        total = 0
        for digit in range(len(places)):
            places[digit], total = total, total + places[digit]
        for index in range(len(words)):
            digit = (words[index] >> shift) & _DIGIT
            other_words[places[digit]], other_rows[places[digit]] = words[index], rows[index]
            places[digit] += 1
        words, other_words, rows, other_rows = other_words, words, other_rows, rows
        shift += _11
    for index in range(1, len(words)):
        word, row = words[index], rows[index]
        place = index
        while place > 0 and words[place - 1] > word:
            words[place], rows[place] = words[place - 1], rows[place - 1]
            place -= 1
        words[place], rows[place] = word, row
    return rows


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
