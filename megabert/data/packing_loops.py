"""The loops that gather the lengths of a global batch, deal it to the bins of a plan, and fill the bins of a rank."""

# T packed tokens, M masked positions, B sequences

from typing import Any, NamedTuple

import numpy as np

from megabert.foundation.compiled import compiled, inlined
from megabert.foundation.randomness.keyed_loops import order_of

_PARTS = 4


class Bins(NamedTuple):
    """The bin of each instance, and the totals of each bin."""

    of_instance: Any
    """Int32, the bin of each instance, in the order of the global batch."""
    tokens: Any
    """Int64, sums of the bins."""
    masked: Any
    """Masked positions of each bin."""
    counts: Any
    """Instances of each bin."""


@compiled
def gather_sizes(sizes, indices, filled, gathered):
    """Copy how long instances are, in the order of their indices.

    Args:
        sizes: ``Sizes``.
        indices: Int32.
        filled: How many are in ``gathered`` already.
        gathered: ``Sizes``, written from there on.
    """
    lengths, masked_counts = sizes
    gathered_lengths, gathered_masked_counts = gathered
    for place, index in enumerate(indices):
        gathered_lengths[filled + place] = lengths[index]
        gathered_masked_counts[filled + place] = masked_counts[index]


@compiled
def total_sizes(lengths, masked_counts):
    """Return the sums of both, and the greatest of each."""
    tokens = masked = longest = most_masked = 0
    for index in range(len(lengths)):
        tokens += lengths[index]
        masked += masked_counts[index]
        longest = max(longest, lengths[index])
        most_masked = max(most_masked, masked_counts[index])
    return tokens, masked, longest, most_masked


@compiled
def longest_first(lengths, longest):
    """Return the instances of a batch in descending order of their lengths, equal ones in the order of the batch.

    It is a counting sort. Several parts of the batch are interleaved, because most instances have the same length, and
    a counter that has just been written would have to be waited for.

    Args:
        lengths: Tokens of each instance.
        longest: The greatest of them.

    Returns:
        Int32.
    """
    part = len(lengths) // _PARTS
    # How many instances of each length each part has; the few that remain belong to the last one.
    places = np.zeros((longest + 1, _PARTS), np.int32)
    for offset in range(part):
        for column in range(_PARTS):
            places[lengths[column * part + offset], column] += 1
    for length in lengths[_PARTS * part :]:
        places[length, _PARTS - 1] += 1
    # From that, the place of the next one.
    longer = 0
    for length in range(longest, -1, -1):
        for column in range(_PARTS):
            places[length, column], longer = longer, longer + places[length, column]

    order = np.empty(len(lengths), np.int32)
    for offset in range(part):
        for column in range(_PARTS):
            _put(order, places, lengths, column * part + offset, column)
    for instance in range(_PARTS * part, len(lengths)):
        _put(order, places, lengths, instance, _PARTS - 1)
    return order


@inlined
def _put(order, places, lengths, instance, column):
    """Put an instance at its place, and move the place of the next one."""
    length = lengths[instance]
    order[places[length, column]] = instance
    places[length, column] += 1


@compiled
def deal_zigzag(order, lengths, masked_counts, rounds, bins):
    """Deal instances to bins 0, 1, ..., n - 1, then n - 1, ..., 1, 0, and again.

    Args:
        order: The instances of the global batch, longest first.
        lengths: Tokens of each.
        masked_counts: Masked positions of each.
        rounds: Rounds to deal, in each of which every bin gets one instance.
        bins: ``Bins``, empty; written.
    """
    of_instance, tokens, masked, counts = bins
    num_bins = len(tokens)
    for turn in range(rounds):
        part = order[turn * num_bins : (turn + 1) * num_bins]
        if turn % 2:
            part = part[::-1]
        for number in range(num_bins):
            instance = part[number]
            of_instance[instance] = number
            tokens[number] += lengths[instance]
            masked[number] += masked_counts[instance]
    counts[:] = rounds


@compiled
def deal_evening(late, lengths, masked_counts, bins):
    """Deal instances round by round, in each to the bins that have room for at least half of the next one.

    Args:
        late: The instances, longest first.
        lengths: Tokens of each instance of the global batch.
        masked_counts: Masked positions of each.
        bins: ``Bins``; written.
    """
    of_instance, tokens, masked, counts = bins
    total = tokens.sum()
    for instance in late:
        total += lengths[instance]
    share, done = total / len(tokens), 0
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


@compiled
def gather_rows(columns, rows, packed):
    """Copy instances end to end, and compute the positions, segments and offsets that follow from their lengths.

    Args:
        columns: ``FlatInstances``, the decoded instances.
        rows: Int64, the instances to copy, in order.
        packed: ``PackedArrays``, written; as large as these instances.
    """
    t = m = 0
    packed.cu_seqlens[0] = 0
    for b, row in enumerate(rows):
        start, stop = columns.token_starts[row], columns.token_starts[row + 1]
        length, b_start = stop - start, columns.segment_b_starts[row]

        # Tokens, positions from 0, and segments: 0 before the first token of B, 1 from there on. These are slices,
        # because an index that cannot be negative lets the compiler move many tokens at once.
        source, target = columns.input_ids[start:stop], packed.input_ids_T[t : t + length]
        positions, segments = packed.position_ids_T[t : t + length], packed.segment_ids_T[t : t + length]
        for index in range(length):
            target[index] = source[index]
            positions[index] = index
            segments[index] = index >= b_start

        # Masked positions are stored relative to their instance; in the micro-batch they index the packed tokens.
        for index in range(columns.masked_starts[row], columns.masked_starts[row + 1]):
            packed.masked_positions_M[m] = t + columns.masked_positions[index]
            packed.masked_ids_M[m] = columns.masked_ids[index]
            m += 1

        packed.next_sentence_label_B[b] = columns.next_sentence_labels[row]
        t += length
        packed.cu_seqlens[b + 1] = t
