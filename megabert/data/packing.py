"""The packing plan: which instances of a global batch go into which micro-batch of which rank.

Sequences are packed end to end, so a micro-batch is limited by its tokens, not by its instances. The plan is a pure
function of the instances' lengths. Every rank computes the whole plan and takes its own share of it, because lengths
are cheap (an index next to the shards holds them) and a plan that is computed everywhere alike needs no communication.

All ranks must run the same number of micro-steps. Forward and backward call collectives under ZeRO (parameters are
gathered, gradients are reduced), and a rank with one micro-step less would leave the others waiting forever. If
there are fewer instances than ranks, some ranks run a micro-batch without instances.

How the plan is made: the instances are distributed, longest first, in zigzag over ``micro-steps * world size``
bins; the last four rounds go to the emptiest bins. The sums of tokens then differ by a few. The numbers of instances
differ by one if lengths are alike, and by more if few instances are much longer than the others: a bin that holds one
of these gets few of the short ones. So ranks have equal work, and one padded size fits all bins of a step.

On a GPU micro-batches are padded to that size, so that a phase has few static shapes. The size is the step's own: its
real tokens divided by its bins, rounded up to a multiple of ``MicroShape.token_multiple`` (1/128 of the greatest size,
in whole tiles). Totals of global batches vary (2% of the mean at 256 instances), and a single size for all steps would
be padded by that much. A phase with large batches therefore meets one or a few shapes; ``token_multiple = tokens``
makes it exactly one.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from megabert.foundation.errors import ConfigError, DataError
from megabert.tokens.shards.folder import InstanceStatistics

_MARGIN_SIGMA = 3.0
"""Global batches that are this many standard deviations above the mean still take the planned number of micro-steps."""
_EVENING_ROUNDS = 4
"""The last rounds of the zigzag, which look at the sums of the bins; more rounds gain nothing measurable."""
_SIZES = 128
"""Padded sizes are multiples of 1/128 of the greatest size, which costs 0.4% of padding on average."""
_TILE, _SHORT_TILE = 128, 16
"""Padded sizes are also multiples of the first, which fills the tiles of matrix products, or of the second if 1/128 is
less. Triton compiles a kernel once for multiples of 16 and once for other numbers, which never occur here."""
_FEWEST_TOKENS = 3
"""Tokens of the shortest instance: [CLS], one token, [SEP]."""


@dataclass(frozen=True, kw_only=True)
class MicroShape:
    """The greatest size of a micro-batch, or the size that micro-batches are padded to.

    Attributes:
        tokens: Packed tokens.
        sequences: Instances.
        masked: Masked positions.
        token_multiple: Padded token counts are multiples of this, or ``tokens`` itself.
        masked_multiple: Padded counts of masked positions are multiples of this, or ``masked`` itself.
    """

    tokens: int
    sequences: int
    masked: int
    token_multiple: int = 1
    masked_multiple: int = 1

    def padded(self, tokens: int, masked: int) -> "MicroShape":
        """Return the smallest padded shape, out of the fixed ladder, that holds a micro-batch of this size."""
        return replace(
            self,
            tokens=min(_round_up(tokens, self.token_multiple), self.tokens),
            masked=min(_round_up(masked, self.masked_multiple), self.masked),
        )


@dataclass(frozen=True, kw_only=True)
class RankShare:
    """Which part of each global batch a rank takes, and the form of its micro-batches."""

    shape: MicroShape
    """Greatest size of a micro-batch, from `shape_for`."""
    rank: int = 0
    world_size: int = 1
    pad: bool = False
    """Whether micro-batches are padded to the step's shape, as they are on a GPU."""
    pin: bool = False
    """Whether tensors are allocated in page-locked memory, from which a GPU copies faster."""


@dataclass(frozen=True, eq=False)
class PackingPlan:
    """A global batch distributed over bins, ``world_size`` of them for each micro-step: one for each micro-batch.

    Attributes:
        world_size: Number of ranks.
        bin_of_instance: Int32, where each instance of the global batch went: rank r takes bin ``s * world_size + r`` in
            micro-step s.
        bin_counts: Instances of each bin.
        num_tokens: Tokens of the global batch.
        num_masked: Its masked positions.
        max_tokens: Tokens of the fullest bin.
        max_masked: Masked positions of the bin that has most.
    """

    world_size: int
    bin_of_instance: NDArray[np.int32]
    bin_counts: NDArray[np.int64]
    num_tokens: int
    num_masked: int
    max_tokens: int
    max_masked: int

    def micro_batches(self, rank: int) -> list[NDArray[np.int64]]:
        """Return the ordinals (indices in the global batch) of each micro-batch of a rank, ascending; maybe none."""
        own = np.flatnonzero(self.bin_of_instance % self.world_size == rank)
        ordinals = own[np.argsort(self.bin_of_instance[own], kind="stable")]
        return np.split(ordinals, np.cumsum(self.bin_counts[rank :: self.world_size])[:-1])


def plan_packing(lengths: NDArray, masked_counts: NDArray, shape: MicroShape, world_size: int) -> PackingPlan:
    """Distribute a global batch over micro-batches; a pure function of its arguments, so equal on every rank.

    Args:
        lengths: Tokens of each instance, in the order of the global batch.
        masked_counts: Masked positions of each instance.
        shape: Greatest size of a micro-batch.
        world_size: Number of ranks. If it exceeds the number of instances, some micro-batches are empty.

    Returns:
        The plan with the fewest micro-steps whose bins all fit.

    Raises:
        DataError: If a single instance is larger than ``shape``.
    """
    tokens, masked = (int(sizes.sum(dtype=np.int64)) for sizes in (lengths, masked_counts))
    longest, most_masked = (int(sizes.max(initial=0)) for sizes in (lengths, masked_counts))
    if longest > shape.tokens or most_masked > shape.masked:
        raise DataError(
            f"an instance has {longest} tokens and {most_masked} masked positions, a micro-batch holds {shape.tokens} "
            f"and {shape.masked}. The shards contradict their manifest: run `megabert-data verify`."
        )
    # How many micro-steps the totals need at least, if every micro-batch were full. Usually these are enough. If the
    # bins come out uneven, one more is tried until all bins fit; that ends, because with a bin for each instance
    # everything fits.
    totals = (tokens, shape.tokens), (masked, shape.masked), (lengths.size, shape.sequences)
    steps = max(1, *(-(-total // (most * world_size)) for total, most in totals))
    order = np.argsort(longest - lengths, kind="stable")  # numbers of 16 bits, which numpy sorts by radix
    while True:
        bin_of_instance, *sums = _distribute(order, lengths, masked_counts, num_bins=steps * world_size)
        max_tokens, max_masked, max_count = (int(sizes.max()) for sizes in sums)
        if max_tokens <= shape.tokens and max_masked <= shape.masked and max_count <= shape.sequences:
            break
        steps += 1
    return PackingPlan(
        world_size=world_size,
        bin_of_instance=bin_of_instance,
        bin_counts=sums[2],
        num_tokens=tokens,
        num_masked=masked,
        max_tokens=max_tokens,
        max_masked=max_masked,
    )


def shape_for(
    statistics: InstanceStatistics, *, global_batch_size: int, world_size: int, micro_batch_tokens: int
) -> MicroShape:
    """Derive the greatest micro-batch of a phase from its totals, so that equal micro-batches come out nearly full.

    A rank's share of a large global batch is divided into as few equal micro-batches as the budget allows. How many
    tokens a share may have is estimated from above: the mean and three standard deviations. The manifest has no
    deviation of the lengths, so it is bounded by their mean and range (Bhatia & Davis 2000: variance <= (max - mean) *
    (mean - min)).

    Args:
        statistics: Totals of the split.
        global_batch_size: Instances per step over all ranks.
        world_size: Number of ranks.
        micro_batch_tokens: Most packed tokens that a rank may take at once.

    Raises:
        ConfigError: If the budget does not hold one instance of full length.
    """
    if micro_batch_tokens < statistics.max_seq_length:
        raise ConfigError(
            f"micro_batch_tokens={micro_batch_tokens} is below max_seq_length={statistics.max_seq_length}: a "
            f"micro-batch must hold one instance. Set micro_batch_tokens to {statistics.max_seq_length} or more, or to "
            "auto."
        )
    if statistics.rows < 1:
        raise DataError("the split has no instances. Build shards from more text.")
    per_rank = global_batch_size / world_size
    longest, most_masked = statistics.max_seq_length, statistics.max_masked
    tokens = per_rank * _high_mean(statistics.tokens / statistics.rows, _FEWEST_TOKENS, longest, global_batch_size)
    steps = max(1, math.ceil((tokens + longest) / micro_batch_tokens))
    masked = per_rank * _high_mean(statistics.masked_tokens / statistics.rows, 0, most_masked, global_batch_size)
    # A micro-batch holds an equal share of that and one more instance, since sums of bins differ by less than one.
    share, masked_share = math.ceil(tokens / steps), math.ceil(masked / steps)
    multiple, masked_multiple = _multiple(share), _multiple(masked_share)
    tile = _tile(share)
    most = max(longest, micro_batch_tokens // tile * tile)
    return MicroShape(
        tokens=min(_round_up(share + longest, multiple), most),
        sequences=math.ceil(1.25 * per_rank / steps) + 4,
        masked=max(1, _round_up(masked_share + most_masked, masked_multiple)),
        token_multiple=multiple,
        masked_multiple=masked_multiple,
    )


def _multiple(size: int) -> int:
    """Return what padded sizes are multiples of: 1/128 of the usual size, rounded up to whole tiles."""
    return max(_tile(size), _round_up(size, _tile(size) * _SIZES) // _SIZES)


def _tile(size: int) -> int:
    """Return the rows of a tile: the large one if padding up to it costs little."""
    return _TILE if size >= _TILE * _SIZES else _SHORT_TILE


def _distribute(
    order: NDArray[np.int64], lengths: NDArray[np.integer], masked_counts: NDArray[np.integer], *, num_bins: int
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Choose a bin for each instance so that the bins' sums of tokens are nearly equal.

    Most rounds are a plain zigzag (bins 0, 1, ..., n - 1, n - 1, ..., 1, 0, 0, ...). It leaves the sums apart by about
    one instance's length. The last rounds, which hold the shortest instances, even that out: each goes to the bins that
    are still below their share, emptiest first (the rule of longest processing time first, Graham 1969, a round at a
    time).

    Args:
        order: The instances, longest first.
        lengths: Tokens of each instance.
        masked_counts: Masked positions of each instance.
        num_bins: Number of bins.

    Returns:
        The bin of each instance; tokens, masked positions and instances of each bin.
    """
    rounds = max(0, lengths.size // num_bins - _EVENING_ROUNDS)
    dealt = order[: rounds * num_bins].reshape(rounds, num_bins).copy()
    dealt[1::2] = dealt[1::2, ::-1]
    bins = np.empty(lengths.size, np.int32)
    bins[dealt] = np.arange(num_bins)
    tokens, masked = (sizes[dealt].sum(axis=0, dtype=np.int64) for sizes in (lengths, masked_counts))
    counts, done, share = np.full(num_bins, rounds), dealt.size, lengths.sum(dtype=np.int64) / num_bins
    # From here on an instance goes to each bin that has room for at least half of it, to the emptiest in any case.
    while done < order.size:
        emptiest = np.argsort(tokens, kind="stable")
        with_room = np.searchsorted(tokens[emptiest], share - lengths[order[done]] / 2, side="right")
        late = order[done : done + max(1, with_room)]
        chosen = emptiest[: late.size]
        bins[late] = chosen
        tokens[chosen] += lengths[late]
        masked[chosen] += masked_counts[late]
        counts[chosen] += 1
        done += late.size
    return bins, tokens, masked, counts


def _high_mean(mean: float, smallest: float, largest: float, count: int) -> float:
    """Return a bound that the mean of ``count`` draws rarely exceeds: mean and range bound their variance."""
    variance = max(0.0, (largest - mean) * (mean - smallest))
    return mean + _MARGIN_SIGMA * math.sqrt(variance / count)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def runs_within(order: Iterable[int], sizes: Sequence[int] | NDArray[np.integer], most: int) -> Iterator[list[int]]:
    """Cut indices, in their order, into runs whose sizes add up to at most ``most``; a larger item is a run of its own.

    Args:
        order: The indices.
        sizes: Size of each item, by its index.
        most: Largest sum of a run.
    """
    run: list[int] = []
    total = 0
    for index in order:
        if run and total + sizes[index] > most:
            yield run
            run, total = [], 0
        run.append(index)
        total += int(sizes[index])
    if run:
        yield run
