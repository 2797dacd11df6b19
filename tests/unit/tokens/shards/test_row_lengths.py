"""The index of lengths next to a shard: read in its place, written anew where it does not fit."""

import os
import resource
from contextlib import contextmanager
from itertools import count, islice

import numpy as np
import pytest

from megabert.foundation.errors import DataError
from megabert.tokens.shards import checked_shards, shard_set
from megabert.tokens.shards.checked_shards import complete_index
from megabert.tokens.shards.folder import lengths_path
from megabert.tokens.shards.shard_set import ShardSet


@pytest.fixture
def indexed(copied):
    """A copy of the shards that have their lengths indices."""
    complete_index(ShardSet.open(copied))
    return copied


def test_lengths_come_from_the_index_alone_and_equal_those_of_the_shards(indexed, train_instances, monkeypatch):
    assert {path.stat().st_size - 128 for path in indexed.glob("train-*.npy")} == {
        4 * shard.rows for shard in ShardSet.open(indexed).shards
    }
    monkeypatch.setattr(shard_set, "ShardFile", None)  # no shard can be opened
    sizes = ShardSet.open(indexed).sizes(((640, 900), (0, 70), (1110, 1111)))
    rows = [*range(640, 900), *range(70), 1110]
    assert sizes.lengths.tolist() == [len(train_instances[row].input_ids) for row in rows]
    assert sizes.masked_counts.tolist() == [len(train_instances[row].masked_lm_ids) for row in rows]


@contextmanager
def few_descriptors():
    """Let this process open ten files more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(name) for name in os.listdir("/proc/self/fd")}
    free = (number for number in count() if number not in used)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(islice(free, 10, None)), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_lengths_of_more_shards_than_may_be_open_come_from_the_index(make, tmp_path, monkeypatch):
    instances = make.instances(60, 32, 1000, seed=3)
    folder = make.shards(tmp_path, {"train": [[instance] for instance in instances]})
    complete_index(ShardSet.open(folder))
    shards = ShardSet.open(folder)
    monkeypatch.setattr(shard_set, "OPEN_SHARDS", 4)
    monkeypatch.setattr(shard_set, "ShardFile", None)  # no shard can be opened
    with few_descriptors():
        sizes = shards.sizes(((0, 60),))
    assert sizes.lengths.tolist() == [len(instance.input_ids) for instance in instances]


def cut(path):
    path.write_bytes(path.read_bytes()[:-7])


def change_a_length(path):
    np.save(path, np.load(path) + np.array([1, 0], "<u2"))


@pytest.mark.parametrize(
    "damage", [cut, change_a_length, lambda path: path.unlink(), lambda path: path.write_bytes(b"")]
)
def test_unfit_index_is_written_again(indexed, damage):
    path = lengths_path(indexed / "train-00002.arrow")
    content = path.read_bytes()
    damage(path)
    complete_index(ShardSet.open(indexed), [0, 1])
    assert not path.exists() or path.read_bytes() != content
    complete_index(ShardSet.open(indexed))
    assert path.read_bytes() == content


def test_index_that_says_other_lengths_than_the_shard_is_an_error(indexed):
    path = lengths_path(indexed / "train-00001.arrow")
    values = np.load(path)
    np.save(path, values[::-1].copy())  # the sums are right
    shards = ShardSet.open(indexed)
    first = shards.shards[0].rows
    rows = np.arange(first, first + 60)
    with pytest.raises(DataError, match=r"train-00001\.row_lengths\.npy: says another length of row \d+ .*Delete it"):
        shards.rows(rows, shards.sizes(((first, first + 60),)))


def test_wrong_index_that_cannot_be_replaced_is_an_error_and_a_missing_one_is_not(indexed, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(checked_shards, "write_lengths", refuse)
    lengths_path(indexed / "train-00000.arrow").unlink()
    complete_index(ShardSet.open(indexed))
    cut(lengths_path(indexed / "train-00001.arrow"))
    with pytest.raises(DataError, match=r"train-00001\.row_lengths\.npy: .*Delete it"):
        complete_index(ShardSet.open(indexed))
