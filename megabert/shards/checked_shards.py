"""Which shards were found sound, by the state of their files, so that a run that is resumed reads none of them."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from megabert.shards import lengths_path
from megabert.shards.shard_set import ShardSet

CHECKED_NAME = "checked_shards.json"
"""The record in a run folder. Without it, all shards are hashed again."""
Checked = dict[str, list[int | str]]
"""A file's absolute path; then the SHA-256 that a shard had to have ("" for a lengths index), size, times of
modification and of change in nanoseconds, and inode of the file that was found to have it."""


def check_shards(
    splits: Iterable[ShardSet], known: Mapping[str, list[int | str]], *, rank: int, world_size: int, with_content: bool
) -> Checked:
    """Check a rank's share of all shards against the manifest; together the ranks read each shard once, or not at all.

    Args:
        splits: The shards.
        known: The record of an earlier start of this run. A file that is still in that state is not read.
        rank: Number of the rank.
        world_size: Number of ranks.
        with_content: Whether shards that are read are decoded as well (`ShardSet.verify`).

    Returns:
        The files that were checked now, with their states.

    Raises:
        DataError: As `ShardSet.verify` and `ShardSet.complete_index`.
    """
    checked: Checked = {}
    for split in splits:
        for index in range(rank, len(split.shards), world_size):
            path, sha256 = (split.folder / split.shards[index].file).absolute(), split.shards[index].sha256
            before = _state(path, sha256)
            if known.get(str(path)) != before:
                split.verify([index], with_content=with_content)
                # A file that was written to meanwhile is checked again the next time.
                checked |= {str(path): before} if before and before == _state(path, sha256) else {}
            index_path = lengths_path(path)
            state = _state(index_path)
            if not state or known.get(str(index_path)) != state:
                split.complete_index([index])
                state = _state(index_path)
                checked |= {str(index_path): state} if state else {}
    return checked


def _state(path: Path, sha256: str = "") -> list[int | str]:
    """Return the state of a file, by which a later change is noticed; nothing if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return []
    return [sha256, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
