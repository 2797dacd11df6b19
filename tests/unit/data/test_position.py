"""Positions against a walk by single instances, and as JSON."""

import json

import pytest

from megabert.data.position import BEGINNING, DataPosition, PositionRange
from megabert.errors import CheckpointError, DataError
from megabert.schema import parse_json, to_json

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
    ],
)
@pytest.mark.parametrize("start", [(0, 0), (0, 3), (0, 10), (1, 5)])
def test_take_equals_a_walk_by_single_instances(count, skipped, start):
    position = DataPosition(*start).skipping(tuple(PositionRange(*r) for r in skipped))
    ranges, after = position.take(count, ROWS)
    assert _flat(ranges) == _walk(position, count)
    assert _flat(after.take(7, ROWS)[0]) == _walk(position, count + 7)[count:]


def test_taking_twice_equals_once():
    position = BEGINNING.skipping((PositionRange(1, 2, 5),))
    assert position.take(4, ROWS)[1].take(19, ROWS)[1] == position.take(23, ROWS)[1]


def test_skipping_leaves_out_exactly_the_next_instances():
    position = DataPosition(0, 7)
    skipping = position.skipping(position.take(6, ROWS)[0])
    assert _flat(skipping.take(5, ROWS)[0]) == _flat(position.take(11, ROWS)[0])[6:]
    assert skipping.skipped == (PositionRange(0, 7, 10), PositionRange(1, 0, 3))


def test_touching_ranges_are_merged():
    position = BEGINNING.skipping((PositionRange(0, 4, 6), PositionRange(0, 1, 4), PositionRange(0, 5, 5)))
    assert position.skipping((PositionRange(0, 5, 8),)).skipped == (PositionRange(0, 1, 8),)


def parse_position(values: dict) -> DataPosition:
    return parse_json(json.dumps(values), DataPosition, where="data position", remedy="", error=CheckpointError)


def test_dict_round_trip_through_json():
    position = DataPosition(3, 14).skipping((PositionRange(4, 0, 9),))
    assert parse_position(to_json(position)) == position


@pytest.mark.parametrize(
    "values", [{}, {"epoch": 1, "offset": -1, "skipped": []}, {"epoch": 1, "offset": 0, "skipped": [[1, 2]]}]
)
def test_damaged_dict_is_refused(values):
    with pytest.raises(CheckpointError, match="data position"):
        parse_position(values)


def test_no_rows_is_an_error_not_a_loop():
    with pytest.raises(DataError, match="no instances"):
        BEGINNING.take(1, 0)
