"""Which shards a start reads: all of them once, none that was found sound and not written to since."""

import os

import pytest

from megabert.foundation.errors import DataError
from megabert.tokens.shards import checked_shards
from megabert.tokens.shards.checked_shards import check_shards
from megabert.tokens.shards.folder import lengths_path
from megabert.tokens.shards.shard_set import ShardSet


@pytest.fixture
def hashed(monkeypatch):
    """Names of the shards that were hashed, which is the first thing that is done with one."""
    names = []

    def sha256_file(path, original=checked_shards.sha256_file):
        names.append(path.name)
        return original(path)

    monkeypatch.setattr(checked_shards, "sha256_file", sha256_file)
    return names


def _check(folder, known, world_size):
    """Return what all ranks know after a start."""
    splits = [ShardSet.open(folder, split) for split in ("train", "validation")]
    parts = [
        check_shards(split, known, range(rank, len(split.shards), world_size), with_content=True)
        for split in splits
        for rank in range(world_size)
    ]
    return known | {path: state for part in parts for path, state in part.items()}


def test_each_shard_is_read_once_by_all_ranks_and_by_none_in_a_second_start(copied, hashed, monkeypatch):
    known = _check(copied, {}, 3)
    shards = sorted(path.name for path in copied.glob("*.arrow"))
    assert sorted(hashed) == shards
    hashed.clear()
    monkeypatch.setattr(checked_shards, "read_lengths", None)  # an index that is read would be an error
    assert _check(copied, known, 2) == known
    assert hashed == []


def test_a_file_that_was_written_to_is_read_again(copied, hashed):
    known = _check(copied, {}, 1)
    hashed.clear()
    path = copied / "train-00001.arrow"
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # as a copy with its times would
    with pytest.raises(DataError, match=r"train-00001\.arrow: SHA-256"):
        _check(copied, known, 2)
    assert hashed == [path.name]


def test_an_index_that_was_removed_is_written_again_without_its_shard(copied, hashed):
    known = _check(copied, {}, 1)
    hashed.clear()
    index = lengths_path(copied / "train-00002.arrow")
    index.unlink()
    _check(copied, known, 1)
    assert index.exists()
    assert hashed == []


def test_another_manifest_makes_a_shard_unknown(copied, hashed):
    known = _check(copied, {}, 1)
    hashed.clear()
    path = str((copied / "train-00000.arrow").absolute())
    _check(copied, known | {path: ["0" * 64, *known[path][1:]]}, 1)
    assert hashed == ["train-00000.arrow"]
