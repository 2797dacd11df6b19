"""The loop that deals a global batch, sorted by length, to the bins of a packing plan."""

from typing import Any, NamedTuple

from megabert.compiled import compiled


class Bins(NamedTuple):
    """Where instances went, and what each bin holds."""

    of_instance: Any
    """Int64, the bin of each instance, in the order of the global batch."""
    tokens: Any
    """Int64, sums of the bins."""
    masked: Any
    """Masked positions of each bin."""
    counts: Any
    """Instances of each bin."""


@compiled
def deal_zigzag(longest_first, lengths, masked_counts, bins):
    """Deal instances in turns: bins 0, 1, ..., n - 1, then n - 1, ..., 1, 0, and again.

    Args:
        longest_first: The instances to deal, in this order.
        lengths: Tokens of each instance of the global batch.
        masked_counts: Masked positions of each.
        bins: ``Bins``, empty; written.
    """
    of_instance, tokens, masked, counts = bins
    number, step = 0, 1
    for instance in longest_first:
        of_instance[instance] = number
        tokens[number] += lengths[instance]
        masked[number] += masked_counts[instance]
        counts[number] += 1
        # At either end the direction turns, and the bin there gets another one.
        if 0 <= number + step < len(tokens):
            number += step
        else:
            step = -step
