"""Which bytes of a shard a rank asks for before it reads its rows."""

import mmap

import numpy as np
import pytest

from megabert.tokens.shards.copy_loops import BLOCK, MappedShard, locate

ROWS, LENGTH, SLACK = 256, 128, 2048
FRONT, TOKENS, REST = 1200 + 4 * (ROWS + 1), 2 * LENGTH * ROWS, 20_000
BATCH = FRONT + TOKENS + REST


def layout(batches: int) -> MappedShard:
    blocks = np.array([(8 + BATCH * n, 1200, 0, BATCH - 1200) for n in range(batches)], BLOCK)
    starts = np.arange(batches + 1) * ROWS
    views = [np.zeros(0, kind) for kind in (np.uint8, np.uint16, np.int32, np.int64, np.uint16)]
    return MappedShard(*views, blocks, starts, batches * TOKENS, SLACK)


def parts_of(rows, where: MappedShard):
    rows = np.array(rows)
    numbers, inside = np.empty_like(rows), np.empty_like(rows)
    parts = locate(where, rows, numbers, inside)
    assert (numbers * ROWS + inside).tolist() == rows.tolist()
    assert not (parts[:, 0] % mmap.PAGESIZE).any()
    return parts


def is_asked_for(parts, begin: int, stop: int) -> bool:
    return any(first <= begin and stop <= last for first, last in parts.tolist())


@pytest.mark.parametrize(("row", "share"), [(0, 0.5), (3, 0.5), (127, 1.05), (255, 0.5)])
def test_row_is_asked_for_with_what_is_around_the_tokens_of_its_batch(row, share):
    """In the middle of the tokens nothing is far enough away to be left out."""
    rows = [row, 5 * ROWS + row]
    parts = parts_of(rows, layout(6))
    for start in (8, 8 + 5 * BATCH):
        assert is_asked_for(parts, start, start + FRONT)
        tokens = start + FRONT + 2 * LENGTH * row
        assert is_asked_for(parts, max(start + FRONT, tokens - SLACK), tokens + 2 * LENGTH + min(SLACK, REST))
        assert is_asked_for(parts, start + FRONT + TOKENS - SLACK, start + BATCH)
    assert np.diff(parts).sum() < 2 * share * BATCH


def test_rows_next_to_each_other_are_one_part():
    assert parts_of(range(3 * ROWS), layout(3)).tolist() == [[0, 8 + 3 * BATCH]]
