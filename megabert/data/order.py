"""The next instances of a run: its position in the data, and the order of rows in an epoch.

The position is (epoch, offset, skipped ranges) and saved with every checkpoint. It counts instances, not steps or
shards, so a run can be resumed with another number of ranks or another batch size.

The order is a keyed permutation with constant memory and constant-time seek. A full permutation of a billion rows would
need a table of 8 GB on every rank, and each row that is planned or read would be on another page of the index and of
the shards. So the order has two levels:

1. The rows are cut into blocks of ``BLOCK_ROWS``. The blocks are permuted by a Feistel network with cycle walking
   (Black & Rogaway 2002, "Ciphers with arbitrary finite domains"), a formula that needs no table.
2. ``WINDOW_BLOCKS`` consecutive permuted blocks are a window. Its rows are permuted by sorting keyed hashes. A window
   has at most 65,536 rows, so this table is of constant size. A corpus of one window is permuted fully.

Resuming at any position costs one window, wherever it is: nothing is replayed.

Two levels are enough because data preparation has shuffled already: documents are ordered by a hash of their text, so
they are spread over the shards, and the instances of a shard are shuffled. So a block of consecutive rows is a random
sample of its shard, and a window mixes eight such samples from anywhere in the corpus.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from megabert.foundation.errors import DataError
from megabert.foundation.randomness.keyed import mix, order_of, string_key

BLOCK_ROWS = 8192
"""Rows of a block: the size that record batches of shards first had. A change changes the order of every run."""
WINDOW_BLOCKS = 8
"""Blocks whose rows are mixed. A change changes the order of every run."""

_BLOCK_BITS = BLOCK_ROWS.bit_length() - 1  # a power of two
_MIN_HALF_BITS = 3  # with halves of 1 or 2 bits the rounds reach few of the permutations of a small domain
_TABLE_HALF_BITS = 5  # a network of up to 1,024 numbers is computed as a whole, at the cost of a single walk
_ROUNDS = 6
_BLOCKS_KEY = string_key("data/order/blocks")
_ROWS_KEY = string_key("data/order/rows")


Index = Annotated[int, Field(ge=0, le=2**53)]  # exact as a float64, too


class PositionRange(NamedTuple):
    """Positions ``start`` to ``stop - 1`` in the permuted order of one epoch."""

    epoch: Index
    start: Index
    stop: Index


@dataclass(frozen=True)
class DataPosition:
    """The next instance to read, and the instances that are never read.

    Attributes:
        epoch: Number of complete passes over the data.
        offset: Position of the next instance in the epoch's order (``EpochOrder``). If it equals the number of
            rows, or is inside a skipped range, reading continues after that.
        skipped: Ranges that are left out, sorted and not overlapping: instances blamed for spikes or non-finite losses.
    """

    epoch: Index
    offset: Index
    skipped: tuple[PositionRange, ...] = ()

    def take(self, count: int, num_rows: int) -> tuple[tuple[PositionRange, ...], "DataPosition"]:
        """Return the ranges that hold the next ``count`` instances, in order, and the position after them.

        Args:
            count: Number of instances to take; they may run over the end of one or several epochs.
            num_rows: Number of rows in an epoch.

        Raises:
            DataError: If an epoch has no rows.
        """
        if num_rows < 1:
            raise DataError("the split has no instances. Build shards from more text, or read another split.")
        taken: list[PositionRange] = []
        epoch, offset, free = self.epoch, self.offset, self._free(num_rows)
        while count > 0:
            epoch, start, limit = next(free)
            offset = min(start + count, limit)
            taken.append(PositionRange(epoch, start, offset))
            count -= offset - start
        return tuple(taken), replace(self, epoch=epoch, offset=offset)

    def skipping(self, ranges: tuple[PositionRange, ...]) -> "DataPosition":
        """Return this position with more ranges skipped; ranges that overlap or touch become one."""
        # Sorted, a range can only touch the one before it.
        merged: list[PositionRange] = []
        for current in sorted((*self.skipped, *ranges)):
            if current.stop <= current.start:
                continue
            if merged and merged[-1].epoch == current.epoch and current.start <= merged[-1].stop:
                merged[-1] = merged[-1]._replace(stop=max(merged[-1].stop, current.stop))
            else:
                merged.append(current)
        return replace(self, skipped=tuple(merged))

    def _free(self, num_rows: int) -> Iterator[PositionRange]:
        """Yield the ranges from this position on that are not skipped, epoch by epoch, without end."""
        offset = self.offset
        for epoch in itertools.count(self.epoch):
            # Up to a skipped range, after it, and at last to the end of the epoch.
            for _, start, stop in [*(own for own in self.skipped if own.epoch == epoch), (epoch, num_rows, num_rows)]:
                if offset < min(start, num_rows):
                    yield PositionRange(epoch, offset, min(start, num_rows))
                offset = max(offset, stop)
            offset = 0


BEGINNING = DataPosition(epoch=0, offset=0)
"""The first instance of the first epoch."""


def permute_range(values: NDArray[np.int64], size: int, key: int, *, is_inverse: bool = False) -> NDArray[np.int64]:
    """Map each value of ``range(size)`` to its image under a permutation, without a table.

    A Feistel network cuts a number of 2b bits into halves and, round by round, xors one half with a keyed hash of the
    other and swaps them. Each round can be undone whatever the hash is, so the network permutes ``range(2 ** 2b)``.

    Args:
        values: Some values of the range.
        size: Length of the range.
        key: Names the permutation.
        is_inverse: Whether to map images back to their values.
    """
    # The fewest bits with which two halves can hold ``size - 1``. The network then permutes up to four times
    # ``size`` numbers (at least 64), so that fewer than four applications lead back inside on average.
    half_bits = max(_MIN_HALF_BITS, ((size - 1).bit_length() + 1) // 2)
    permute: Callable[[NDArray[np.uint64]], NDArray[np.uint64]] = partial(
        _network, key=key, half_bits=half_bits, is_inverse=is_inverse
    )
    if half_bits <= _TABLE_HALF_BITS:
        permute = permute(np.arange(1 << 2 * half_bits, dtype=np.uint64)).__getitem__
    # An image past the end goes through the network again (cycle walking).
    images, outside = values.astype(np.uint64), np.arange(len(values))
    while len(outside):
        images[outside] = permute(images[outside])
        outside = outside[images[outside] >= size]
    return images.astype(np.int64)


def _network(words: NDArray[np.uint64], key: int, half_bits: int, *, is_inverse: bool) -> NDArray[np.uint64]:
    """Apply all rounds to some words."""
    shift, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = words >> shift, words & mask
    # With its halves exchanged before and after, a round undoes itself: the inverse is the same rounds, last first.
    if is_inverse:
        left, right = right, left
    for number in reversed(range(_ROUNDS)) if is_inverse else range(_ROUNDS):
        left, right = right, left ^ (mix(key, number, right) & mask)
    if is_inverse:
        left, right = right, left
    return (left << shift) | right


@dataclass(frozen=True, eq=False)
class Window:
    """Rows that are read and mixed together.

    Attributes:
        spans: Row ranges (first, stop), ascending. Equal spans mean equal rows, so they can key a cache.
        start: Position in the epoch of the window's first instance.
        order: Int32; ``order[i]`` is the index, in the concatenated spans, of the instance at ``start + i``.
    """

    spans: tuple[tuple[int, int], ...]
    start: int
    order: NDArray[np.int32]

    def rows_at(self, indices: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the rows with these indices in the concatenated spans."""
        # All spans are full but the last one, which may be the corpus's short block.
        starts = np.array([first for first, _ in self.spans])
        return starts[indices >> _BLOCK_BITS] + (indices & (BLOCK_ROWS - 1))


@dataclass(frozen=True)
class EpochOrder:
    """The order of ``num_rows`` rows in one epoch; a pure function of its fields."""

    num_rows: int
    seed: int
    epoch: int

    @property
    def _num_blocks(self) -> int:
        return -(-self.num_rows // BLOCK_ROWS)

    def window_at(self, position: int) -> Window:
        """Return the window that holds a position, 0 to ``num_rows - 1``; costs the same for every position."""
        if not 0 <= position < self.num_rows:
            raise IndexError(f"position {position} is outside an epoch of {self.num_rows} rows")
        # Were all blocks full, a division would give the window. The corpus's last block is short, and the permutation
        # puts it anywhere: all windows after it start that much earlier, so the division may be one window too low.
        index = position // (BLOCK_ROWS * WINDOW_BLOCKS)
        if position >= _window_start(self, index + 1):
            index += 1
        return _window(self, index)

    def parts(self, start: int, stop: int) -> Iterator[tuple[Window, NDArray[np.int32]]]:
        """Yield the windows that hold positions ``start`` to ``stop - 1``, each with its ``order`` cut to these."""
        while start < stop:
            window = self.window_at(start)
            indices = window.order[start - window.start : stop - window.start]
            yield window, indices
            start += indices.size

    def rows(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the rows at positions ``start`` to ``stop - 1`` of the epoch."""
        parts = [window.rows_at(indices) for window, indices in self.parts(start, stop)]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)


@lru_cache(maxsize=256)
def _short_slot(order: EpochOrder) -> int:
    """Return the index of the corpus's last, short block among the permuted blocks."""
    last = order._num_blocks - 1
    return int(_permute_blocks(order, np.array([last]), is_inverse=True)[0])


def _permute_blocks(order: EpochOrder, blocks: NDArray[np.int64], *, is_inverse: bool = False) -> NDArray[np.int64]:
    key = int(mix(_BLOCKS_KEY, order.seed, order.epoch))
    return permute_range(blocks, order._num_blocks, key, is_inverse=is_inverse)


def _window_start(order: EpochOrder, index: int) -> int:
    """Return the position of a window's first instance: all blocks before it are full, but perhaps the short one."""
    missing = order._num_blocks * BLOCK_ROWS - order.num_rows
    slot = index * WINDOW_BLOCKS
    return slot * BLOCK_ROWS - (missing if slot > _short_slot(order) else 0)


@lru_cache(maxsize=256)  # two for each of 128 sources; 256 KiB each at most
def _window(order: EpochOrder, index: int) -> Window:
    # Which blocks the window has. They are sorted, so that they are read in the order in which they are stored.
    slots = np.arange(index * WINDOW_BLOCKS, min((index + 1) * WINDOW_BLOCKS, order._num_blocks))
    blocks = np.sort(_permute_blocks(order, slots))
    spans = tuple((int(b) * BLOCK_ROWS, min((int(b) + 1) * BLOCK_ROWS, order.num_rows)) for b in blocks)
    # Their rows are sorted by keyed hashes. The sort is stable, so that equal hashes, should they ever occur, keep one
    # order everywhere.
    size = sum(stop - first for first, stop in spans)
    keys = mix(_ROWS_KEY, order.seed, order.epoch, index, np.arange(size))
    return Window(spans, _window_start(order, index), order_of(keys).astype(np.int32))
