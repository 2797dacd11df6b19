"""Checks of shards against their manifest before a run, and the record of sound files, which a resumed run trusts."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from megabert.foundation.cached_folders import fetch_files, is_cached
from megabert.foundation.errors import DataError
from megabert.foundation.files import sha256_file
from megabert.foundation.remote_files import Advance
from megabert.tokens.shards.folder import lengths_path, read_lengths, write_lengths
from megabert.tokens.shards.shard_file import COPY_AGAIN
from megabert.tokens.shards.shard_set import ShardSet

COPY_OR_BUILD = "Copy it again, or delete it and run the same `megabert-data build` command."
CHECKED_NAME = "checked_shards.json"
"""The record in a run folder. Without it, all shards are hashed again."""
Checked = dict[str, list[int | str]]
"""A file's absolute path; then the SHA-256 that a shard had to have ("" for a lengths index), size, times of
modification and of change in nanoseconds, and inode of the file that was found to have it."""


def check_shards(
    split: ShardSet, known: Checked, indices: Iterable[int], *, with_content: bool, advance: Advance = lambda: None
) -> Checked:
    """Check some shards against the manifest; ranks share the work, so that together they read each shard once at most.

    Args:
        split: The shards.
        known: The record of an earlier start of this run. A file that is still in that state is not read.
        indices: Which of them.
        with_content: Whether shards that are read are decoded as well (`verify_shards`).
        advance: Called before each shard.

    Returns:
        The files that were checked now, with their states.

    Raises:
        DataError: As `verify_shards` and `complete_index`.
    """
    checked: Checked = {}
    for index in indices:
        advance()
        path, sha256 = (split.folder / split.shards[index].file).absolute(), split.shards[index].sha256
        before = _state(path, sha256)
        if known.get(str(path)) != before:
            verify_shards(split, [index], with_content=with_content)
            # A file that was written to meanwhile is checked again the next time.
            checked |= {str(path): before} if before and before == _state(path, sha256) else {}
        index_path = lengths_path(path)
        state = _state(index_path)
        if not state or known.get(str(index_path)) != state:
            complete_index(split, [index])
            state = _state(index_path)
            checked |= {str(index_path): state} if state else {}
    return checked


def verify_shards(split: ShardSet, indices: Iterable[int] | None = None, *, with_content: bool = True) -> None:
    """Hash shards and compare with the manifest, then check their instances.

    Args:
        split: The shards.
        indices: Which of them; all by default. Ranks can share the work: ``range(rank, len(shards), size)``.
        with_content: Whether to decode the shards as well. If bytes with this hash were found sound before, the
            hash suffices.

    Raises:
        DataError: For the first shard whose bytes differ, or that holds instances which nobody can train on.
    """
    for index in range(len(split.shards)) if indices is None else indices:
        shard, path = split.shards[index], split.folder / split.shards[index].file
        fetch_files(split.folder, [shard.file])
        digest = sha256_file(path)
        if digest != shard.sha256:
            again = "Delete it: the next start fetches it again." if is_cached(split.folder) else COPY_OR_BUILD
            raise DataError(
                f"{path}: SHA-256 is {digest}, the manifest says {shard.sha256}: the shard was damaged or replaced. "
                f"{again}",
                see="a-shard-is-missing-or-damaged",
            )
        if not with_content:
            continue
        # Read it and count: a manifest may vouch for bytes that make no sense.
        tokens, masked = split.measure(index, 0, shard.rows).sum(axis=0, dtype=np.int64)
        if (tokens, masked) != (shard.tokens, shard.masked_tokens):
            raise DataError(
                f"{path}: it has {tokens} tokens, {masked} of them to predict; the manifest says {shard.tokens} and "
                f"{shard.masked_tokens}. {COPY_AGAIN}"
            )


def complete_index(split: ShardSet, indices: Iterable[int] | None = None) -> None:
    """Write the lengths indices that are missing or wrong, from the shards themselves.

    If the folder cannot be written to, the shards go without: lengths are then read from them each time.

    Args:
        split: The shards.
        indices: Which of them, as in `verify_shards`.

    Raises:
        DataError: A wrong index cannot be replaced, or a shard cannot be read.
    """
    for index in range(len(split.shards)) if indices is None else indices:
        shard, path = split.shards[index], split.folder / split.shards[index].file
        stored = read_lengths(path, shard.rows, split.kinds)
        totals = [shard.tokens, shard.masked_tokens][: split.kinds]
        if stored is not None and stored.sum(axis=1, dtype=np.int64).tolist() == totals:
            continue
        sizes = split.measure(index, 0, shard.rows)
        try:
            write_lengths(path, *sizes.T[: split.kinds])
        except (OSError, DataError) as error:
            if lengths_path(path).exists():
                raise DataError(
                    f"{lengths_path(path)}: says other lengths than the shard, and cannot be written again "
                    f"({error}). Delete it: it is not needed."
                ) from error


def _state(path: Path, sha256: str = "") -> list[int | str]:
    """Return the state of a file, by which a later change is noticed; nothing if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return []
    return [sha256, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
