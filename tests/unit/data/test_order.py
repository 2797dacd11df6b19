"""Positions against a walk by single instances, and as JSON; the order of an epoch: each row once, near uniform."""

import numpy as np
import pytest

from megabert.data import order as data_order
from megabert.data.order import BEGINNING, DataPosition, EpochOrder, PositionRange, permute_range
from megabert.foundation.errors import DataError

BLOCK = data_order.BLOCK_ROWS
WINDOW = BLOCK * data_order.WINDOW_BLOCKS
ROWS = 10


def _flat(ranges):
    return [(r.epoch, p) for r in ranges for p in range(r.start, r.stop)]


def _walk(position, count):
    """One instance at a time, by the definition."""
    skipped = set(_flat(position.skipped))
    epoch, offset, seen = position.epoch, position.offset, []
    while len(seen) < count:
        if offset >= ROWS:
            epoch, offset = epoch + 1, 0
        elif (epoch, offset) in skipped:
            offset += 1
        else:
            seen.append((epoch, offset))
            offset += 1
    return seen


@pytest.mark.parametrize("count", [1, 3, 9, 10, 11, 35])
@pytest.mark.parametrize(
    "skipped",
    [
        (),
        ((0, 2, 4),),
        ((0, 0, 10),),
        ((0, 8, 10), (1, 0, 3), (1, 5, 6)),
        ((0, 0, 10), (1, 0, 10), (2, 9, 10)),
        ((5, 1, 2),),
        ((0, 15, 19),),  # past the end of the epoch
    ],
)
@pytest.mark.parametrize("start", [(0, 0), (0, 3), (0, 10), (1, 5)])
def test_take_equals_a_walk_by_single_instances(count, skipped, start):
    position = DataPosition(*start).skipping(tuple(PositionRange(*r) for r in skipped))
    ranges, after = position.take(count, ROWS)
    assert _flat(ranges) == _walk(position, count)
    assert _flat(after.take(7, ROWS)[0]) == _walk(position, count + 7)[count:]


def test_skipping_leaves_out_exactly_the_next_instances():
    position = DataPosition(0, 7)
    skipping = position.skipping(position.take(6, ROWS)[0])
    assert _flat(skipping.take(5, ROWS)[0]) == _flat(position.take(11, ROWS)[0])[6:]
    assert skipping.skipped == (PositionRange(0, 7, 10), PositionRange(1, 0, 3))


def test_touching_ranges_are_merged():
    position = BEGINNING.skipping((PositionRange(0, 4, 6), PositionRange(0, 1, 4), PositionRange(0, 5, 5)))
    assert position.skipping((PositionRange(0, 5, 8),)).skipped == (PositionRange(0, 1, 8),)


def test_no_rows_is_an_error_not_a_loop():
    with pytest.raises(DataError, match="no instances"):
        BEGINNING.take(1, 0)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 65, 1000, 4097])
@pytest.mark.parametrize("key", [0, 2**64 - 1, 12345])
def test_feistel_is_a_bijection_with_its_inverse(size, key):
    images = permute_range(np.arange(size), size, key)
    assert sorted(images) == list(range(size))
    assert np.array_equal(permute_range(images, size, key, is_inverse=True), np.arange(size))


def test_feistel_places_are_close_to_uniform():
    size, keys = 12, 1000
    images = np.array([permute_range(np.arange(size), size, key) for key in range(keys)])
    counts = np.stack([np.bincount(images[:, value], minlength=size) for value in range(size)])
    chi_square = ((counts - keys / size) ** 2 / (keys / size)).sum()
    # (size - 1)**2 = 121 degrees of freedom: mean 121, standard deviation 15.6.
    assert chi_square < 121 + 6 * 15.6


def test_feistel_of_a_billion_blocks_needs_no_table():
    values = np.array([0, 1, 999_999_999])
    images = permute_range(values, 10**9, 5)
    assert np.array_equal(permute_range(images, 10**9, 5, is_inverse=True), values)


@pytest.mark.parametrize(
    "num_rows", [1, 2, 777, BLOCK, BLOCK + 1, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW + BLOCK // 2, 3 * WINDOW]
)
def test_each_row_comes_once_an_epoch(num_rows):
    for epoch in (0, 1, 7):
        rows = EpochOrder(num_rows, 3, epoch).rows(0, num_rows)
        assert np.array_equal(np.sort(rows), np.arange(num_rows))


def test_short_block_may_lie_in_any_window():
    num_rows = 3 * WINDOW + 100
    starts = set()
    for epoch in range(20):
        order = EpochOrder(num_rows, 0, epoch)
        rows = order.rows(0, num_rows)
        assert np.array_equal(np.sort(rows), np.arange(num_rows))
        starts.add(int(np.flatnonzero(rows >= 3 * WINDOW).min()) // WINDOW)
    assert len(starts) > 1


def test_seek_equals_walking():
    num_rows = 2 * WINDOW + 4321
    order = EpochOrder(num_rows, 11, 4)
    walked = order.rows(0, num_rows)
    rng = np.random.default_rng(0)
    for start in rng.integers(0, num_rows, 30):
        stop = min(int(start) + int(rng.integers(1, 9000)), num_rows)
        assert np.array_equal(EpochOrder(num_rows, 11, 4).rows(int(start), stop), walked[start:stop])


def test_orders_of_epochs_and_seeds_differ():
    first = EpochOrder(5000, 1, 0).rows(0, 5000)
    for other in (EpochOrder(5000, 1, 1), EpochOrder(5000, 2, 0)):
        assert np.mean(other.rows(0, 5000) == first) < 0.01


def test_position_and_row_are_uncorrelated_in_a_window():
    rows = EpochOrder(WINDOW, 8, 2).rows(0, WINDOW)
    assert abs(np.corrcoef(rows, np.arange(WINDOW))[0, 1]) < 5 / WINDOW**0.5
    assert abs(np.corrcoef(rows[1:], rows[:-1])[0, 1]) < 5 / WINDOW**0.5


def test_order_is_pinned():
    # A change of these numbers changes the data order of every run: resumed runs would repeat and miss instances.
    assert EpochOrder(1000, 42, 0).rows(0, 4).tolist() == [248, 13, 340, 606]
    assert EpochOrder(10**9, 42, 3).rows(123_456_789, 123_456_792).tolist() == [606546723, 622393789, 294144187]


def test_position_outside_the_epoch_is_refused():
    with pytest.raises(IndexError):
        EpochOrder(10, 0, 0).window_at(10)
