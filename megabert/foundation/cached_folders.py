"""Folders at a URL, fetched once into a cache on this machine, where everything else reads them as folders.

A cache holds a folder for each manifest, named by the SHA-256 of its bytes; so two URLs of one build share a folder,
and a build that was replaced gets another. The manifest comes at once, every other file when it is needed, or all
together before (`fetch_files`). A file gets its name once its bytes have the SHA-256 that the manifest lists. One
process at a time fills a folder; others, which may be ranks of the node or of another run, wait and find its files.
"""

import fcntl
import hashlib
import json
import logging
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path

from megabert.foundation.errors import ConfigError, DataError, HaltedError
from megabert.foundation.files import atomic_write, open_lock, read_small, remove_killed_writes, try_lock
from megabert.foundation.json_files import parse_json, read_json
from megabert.foundation.remote_files import CONNECTIONS, Advance, fetch_file, read_remote, remote_size, transfer_all

logger = logging.getLogger(__name__)

MANIFEST_NAME = "manifest.json"
ORIGIN_NAME = "origin.json"
_WAIT_S = 0.1
_GB = 10**9


@dataclass(frozen=True)
class Origin:
    """Where the files of a cached folder come from."""

    url: str
    limit_gb: float | None = None
    """Most bytes of the whole cache, in 10^9."""


@dataclass(frozen=True)
class _Entry:
    file: str
    sha256: str


@dataclass(frozen=True)
class _Listed:
    """The part of a manifest that says which files there are; its readers check the rest."""

    shards: list[_Entry]
    tokenizer_files: dict[str, str] = field(default_factory=dict)


def listed_files(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file that the manifest of a folder lists, by its path in the folder.

    Raises:
        DataError: The manifest is damaged, or lists files outside of the folder.
    """
    return _parse(read_small(folder / MANIFEST_NAME), str(folder / MANIFEST_NAME))


def is_cached(folder: Path) -> bool:
    """Return whether a folder is one of a cache, whose files are perhaps not there yet."""
    return (folder / ORIGIN_NAME).exists()


def origin_of(folder: Path) -> Origin:
    """Return where the files of a cached folder come from.

    Raises:
        DataError: The record of it is damaged.
    """
    return read_json(folder / ORIGIN_NAME, Origin, remedy="Delete it: the next start writes it again.")


def place_of(folder: Path) -> str:
    """Return where the files of a folder are from, for messages: the URL of a cached one, or the folder itself."""
    return origin_of(folder).url if is_cached(folder) else str(folder)


@lru_cache(maxsize=1024)
def cached_folder(url: str, cache: str, limit_gb: float | None = None) -> Path:
    """Return the folder of a cache for a folder at a URL, with its manifest and tokenizer, without shards.

    Args:
        url: The folder, without a slash at its end.
        cache: Folder of the cache, which is made if there is none.
        limit_gb: Most bytes of the whole cache, in 10^9.

    Raises:
        ConfigError: The URL cannot be used, or the cache cannot be written.
        DataError: There is no manifest, it is damaged or lists no tokenizer, or the disk is full.
    """
    content = read_remote(f"{url}/{MANIFEST_NAME}")
    listed = _parse(content, f"{url}/{MANIFEST_NAME}")
    tokenizer = [name for name in listed if name.startswith("tokenizer/")]
    if not tokenizer:
        raise DataError(
            f"{url}/{MANIFEST_NAME}: lists no files of its tokenizer, which could not be verified. Copy the folder to "
            "this machine by yourself, and name the copy."
        )
    folder = Path(cache).absolute() / hashlib.sha256(content).hexdigest()
    origin = json.dumps(asdict(Origin(url, limit_gb))).encode()
    try:
        for name, text in ((ORIGIN_NAME, origin), (MANIFEST_NAME, content)):
            if not (folder / name).exists() or read_small(folder / name) != text:
                atomic_write(folder / name, text)
        fetch_files(folder, tokenizer)
    except OSError as error:
        raise ConfigError(f"data.cache={cache}: cannot be written ({error.strerror}). Name another folder.") from error
    return folder


def fetch_files(
    folder: Path,
    names: Collection[str] | None = None,
    *,
    connections: int = CONNECTIONS,
    advance: Advance = lambda: None,
) -> None:
    """Fetch the files of a folder that are missing; returns at once if none is, or if the folder is not of a cache.

    Args:
        folder: The folder.
        names: Paths of the files in it; None for all.
        connections: Files that are fetched at the same time.
        advance: Called now and then; an exception that it raises ends the transfer.

    Raises:
        ConfigError, DataError: As `megabert.foundation.remote_files.fetch_file`, or the cache would exceed its limit.
    """
    if (names is not None and all((folder / name).exists() for name in names)) or not is_cached(folder):
        return
    wanted = {name: sha256 for name, sha256 in listed_files(folder).items() if names is None or name in names}
    if all((folder / name).exists() for name in wanted):
        return
    with _alone(folder / ".lock", advance) as is_locked:
        if is_locked:
            # Not all of them: other ranks may be writing the manifest, or an index of lengths.
            remove_killed_writes(folder, (".*.arrow.*.tmp", "tokenizer/.*.tmp"))
        missing = {name: sha256 for name, sha256 in wanted.items() if not (folder / name).exists()}
        origin = origin_of(folder)
        _require_room(folder, origin, missing, advance)
        begun = time.monotonic()
        transfer_all(fetch_file, origin.url, folder, missing, connections=connections, advance=advance)
        if missing:
            size, taken_s = sum((folder / name).stat().st_size for name in missing), time.monotonic() - begun
            logger.info("%s: %d files (%.3g GB) fetched in %.1f s", origin.url, len(missing), size / _GB, taken_s)


@contextmanager
def _alone(path: Path, advance: Advance) -> Iterator[bool]:
    """Hold a lock file, after the process that holds it; yield whether the file system has locks.

    Without locks several processes may fetch a file, and each writes it whole.
    """
    with open_lock(path) as stream:
        while True:
            try:
                is_locked = try_lock(stream, fcntl.LOCK_EX)
                break
            except BlockingIOError:
                advance()
                time.sleep(_WAIT_S)
        yield is_locked


def _require_room(folder: Path, origin: Origin, missing: dict[str, str], advance: Advance) -> None:
    """Refuse to fetch more than the cache may hold."""
    if origin.limit_gb is None or not missing:
        return
    more = sum(transfer_all(remote_size, origin.url, folder, missing, advance=advance))
    held = {each: _bytes_in(each) for each in folder.parent.iterdir() if each.is_dir()}
    if more + sum(held.values()) > origin.limit_gb * _GB:
        others = sorted((each for each in held if each != folder), key=lambda each: each.stat().st_mtime)
        unused = "".join(f" {each.name[:12]}... ({held[each] / _GB:.3g} GB)" for each in others[:3]) or " none"
        raise HaltedError(
            f"data.cache_limit={origin.limit_gb:g} GB: {origin.url} needs {more / _GB:.3g} GB more, and "
            f"{folder.parent} holds {sum(held.values()) / _GB:.3g} GB. Raise the limit, or remove folders there that "
            f"no run reads; the oldest of other data:{unused}."
        )


def _bytes_in(folder: Path) -> int:
    size = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # another run has renamed it meanwhile
            size += path.stat().st_size if path.is_file() else 0
    return size


def _parse(content: bytes, where: str) -> dict[str, str]:
    """Return the SHA-256 of each file that a manifest lists, none of them outside of its folder."""
    listed = parse_json(content, _Listed, where=where, remedy="Upload the manifest of the build again.")
    shards = {entry.file: entry.sha256 for entry in listed.shards}
    for name in (*listed.tokenizer_files, *shards):
        if Path(name).name != name or name in (MANIFEST_NAME, ORIGIN_NAME):
            raise DataError(f"{where}: lists {name!r}, which is no plain file name. Upload the build's own manifest.")
    return {f"tokenizer/{name}": sha256 for name, sha256 in listed.tokenizer_files.items()} | shards
