"""The loops that deal a global batch to the bins of a packing plan, and pick the bins of a rank."""

from typing import Any, NamedTuple

import numpy as np

from megabert.compiled import compiled, inlined
from megabert.randomness.keyed_loops import order_of

_PARTS = 4


class Bins(NamedTuple):
    """Where instances went, and what each bin holds."""

    of_instance: Any
    """Int32, the bin of each instance, in the order of the global batch."""
    tokens: Any
    """Int64, sums of the bins."""
    masked: Any
    """Masked positions of each bin."""
    counts: Any
    """Instances of each bin."""


@compiled
def deal_zigzag(lengths, masked_counts, rounds, bins):
    """Deal instances, longest first: to bins 0, 1, ..., n - 1, then n - 1, ..., 1, 0, and again.

    Args:
        lengths: Tokens of each instance of the global batch.
        masked_counts: Masked positions of each.
        rounds: Rounds to deal, in each of which every bin gets one instance.
        bins: ``Bins``, empty; written.

    Returns:
        The instances that these rounds have left over, longest first, equal ones in the order of the batch.
    """
    num_bins, part = len(bins.tokens), len(lengths) // _PARTS
    places = _first_places(lengths, part)
    # The bin of each place; -1 behind these rounds.
    bin_of = np.full(len(lengths), -1, np.int32)
    for turn in range(rounds):
        for number in range(num_bins):
            bin_of[turn * num_bins + number] = num_bins - 1 - number if turn % 2 else number

    late = np.empty(len(lengths) - rounds * num_bins, np.int64)
    of_instance, tokens, masked, counts = bins
    for step in range(len(lengths)):
        # The parts in turns, then the few instances behind the last one, which belong to it.
        column = step % _PARTS if step < _PARTS * part else _PARTS - 1
        instance = column * part + step // _PARTS if step < _PARTS * part else step
        length = lengths[instance]
        place = places[length, column]
        places[length, column] += 1
        number = bin_of[place]
        if number < 0:
            late[place - rounds * num_bins] = instance
        else:
            of_instance[instance] = number
            tokens[number] += length
            masked[number] += masked_counts[instance]
    counts[:] = rounds
    return late


@inlined
def _first_places(lengths, part):
    """Return where, among all instances in descending order, the first one of each length and part of the batch is.

    The batch is counted in parts, one instance of each in turns, because most have the same length, and a counter that
    has just been written would have to be waited for.
    """
    longest = 0
    for length in lengths:
        longest = max(longest, length)
    places, longer = np.zeros((longest + 1, _PARTS), np.int64), 0
    for offset in range(part):
        for column in range(_PARTS):
            places[lengths[column * part + offset], column] += 1
    for length in lengths[_PARTS * part :]:
        places[length, _PARTS - 1] += 1
    for length in range(longest, -1, -1):
        for column in range(_PARTS):
            places[length, column], longer = longer, longer + places[length, column]
    return places


@compiled
def deal_evening(late, lengths, masked_counts, share, bins):
    """Deal instances round by round, in each to the bins that have room for at least half of the next one.

    Args:
        late: The instances, longest first.
        lengths: Tokens of each instance of the global batch.
        masked_counts: Masked positions of each.
        share: Tokens that a bin should have.
        bins: ``Bins``; written.
    """
    of_instance, tokens, masked, counts = bins
    done = 0
    while done < len(late):
        emptiest, half = order_of(tokens - tokens.min()), lengths[late[done]] / 2
        round_size = min(len(tokens), len(late) - done)
        for index in range(round_size):
            number = emptiest[index]
            if index > 0 and tokens[number] > share - half:
                break
            instance = late[done]
            of_instance[instance] = number
            tokens[number] += lengths[instance]
            masked[number] += masked_counts[instance]
            counts[number] += 1
            done += 1


@compiled
def instances_of(of_instance, counts, first, stride):
    """Return the instances of every ``stride``-th bin from ``first`` on, bin by bin, ascending within a bin.

    Args:
        of_instance: Int32, the bin of each instance.
        counts: Instances of each bin.
        first: Number of the first bin.
        stride: Distance to the next bin.
    """
    ends, total = np.full(len(counts), -1), 0
    for number in range(first, len(counts), stride):
        ends[number] = total
        total += counts[number]
    instances = np.empty(total, np.int64)
    for instance, number in enumerate(of_instance):
        if ends[number] >= 0:
            instances[ends[number]] = instance
            ends[number] += 1
    return instances
