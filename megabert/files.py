"""Files and folders that appear whole or not at all (a temporary name, fsync, rename), locks, and hashes of files."""

import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from megabert.errors import DataError

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
UNFINISHED = ".unfinished"
"""Marks a temporary folder as ours, and is locked for as long as its process lives."""
_ASIDE = "previous"
"""The name, in a temporary folder, of what its content replaces."""
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}\.tmp(\.old)?", re.DOTALL)
_SHOWN = 40
"""Characters of a name that its temporary name begins with; a whole name and a suffix may be too long together."""


def sha256_file(path: Path | str) -> str:
    """Return the SHA-256 of a file's bytes as 64 hexadecimal digits.

    Raises:
        DataError: The file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}). Check that it exists and its permissions."
        ) from error


def sync_file(path: Path | str) -> None:
    """Make durable what was written to a file."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


sync_folder = sync_file
"""Makes durable which names a folder has; without it a power cut can undo a rename."""


def write_durably(path: Path | str, content: bytes) -> None:
    """Write a small file in place and sync it. It is meant for files of a folder that is renamed once it is whole."""
    with open(path, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def try_lock(stream: IO[Any], mode: int) -> bool:
    """Lock an open file without waiting. The lock is released when the process ends, however it ends.

    Args:
        stream: The open file.
        mode: ``fcntl.LOCK_EX`` or ``fcntl.LOCK_SH``.

    Returns:
        Whether the file is locked. False means that the file system has no locks, which the caller has to report.

    Raises:
        BlockingIOError: Another process holds the lock.
    """
    try:
        fcntl.flock(stream.fileno(), mode | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return False
    return True


def open_lock(path: Path) -> IO[str]:
    """Open a lock file for reading and writing; make it where there is none.

    Raises:
        DataError: There is a symbolic link or a device, and what is behind it is not ours to write to.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise
        is_file = False
    if not is_file:
        raise DataError(f"{path}: is a link, a folder or a device, where our lock file belongs. Remove it.")
    return os.fdopen(descriptor, "r+", encoding="utf-8", errors="replace")


def is_temporary(path: Path) -> bool:
    """Whether a name is one that `atomic_path` and `publish_folder` give to what they have not finished."""
    return _TEMPORARY.fullmatch(path.name) is not None


def _temporary(path: Path) -> Path:
    """Return a new name next to a path. It is random, so two writers (threads, hosts, containers) never share one."""
    return path.with_name(f".{path.name[:_SHOWN]}.{secrets.token_hex(4)}.tmp")


def _written_through(path: Path, *, is_folder: bool) -> Path:
    """Return what an output is written to: the path itself, or what it links to, so that the link stays.

    Only nothing, or something of the same kind, is ever replaced: never a device such as /dev/null.
    """
    wanted = "folder" if is_folder else "file"
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):  # the first write tells what is missing
        mode = None
    except OSError as error:  # a loop of links, a name too long, a closed folder
        raise DataError(f"{path}: cannot be written ({error.strerror}). Name another {wanted}.") from None
    if mode is not None and not (stat.S_ISDIR if is_folder else stat.S_ISREG)(mode):
        kind = "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "device or pipe"
        raise DataError(f"{path}: is a {kind}. Name a {wanted}{' in it' if kind == 'folder' else ''}.")
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _named_by_user(error: OSError, temporary: Path, path: Path) -> None:
    """Let an error name the path that the user knows in place of its temporary name."""
    if str(error.filename) == str(temporary):
        error.filename = str(path)


@contextmanager
def atomic_path(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path next to ``path``; on success sync it and rename it to ``path``.

    On any error the temporary file is removed and ``path`` is as it was. What a symbolic link names is written, and the
    link stays.

    Raises:
        DataError: ``path`` is a folder, a device or a loop of links, or the disk is full; the message names the folder
            and its free space.
    """
    path = _written_through(Path(path), is_folder=False)
    temporary = _temporary(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        sync_file(temporary)
        os.replace(temporary, path)
        sync_folder(path.parent)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            if error.errno in NO_SPACE:
                raise disk_full(path) from error
            _named_by_user(error, temporary, path)
        raise


@contextmanager
def publish_folder(folder: Path | str) -> Iterator[Path]:
    """Yield an empty temporary folder; on success it is synced with all that is in it and becomes ``folder``.

    A folder that is already there is moved aside for the moment of the exchange and removed afterwards, so a reader
    sees the previous content or the new one, never half of either. On any error the temporary folder is removed and
    ``folder`` is as it was. What a killed process left of its own is removed by the next one.

    Raises:
        DataError: ``folder`` is a file, a device or a loop of links, or the disk is full; the message names the folder
            and its free space.
    """
    folder = _written_through(Path(folder), is_folder=True)
    temporary = _temporary(folder)
    try:
        _remove_unfinished(folder)
        new = temporary / "new"
        new.mkdir(parents=True)
        with open(temporary / UNFINISHED, "wb") as mark:
            try_lock(mark, fcntl.LOCK_EX)
            yield new
            for path in new.rglob("*"):
                sync_file(path)
            sync_folder(new)
            replace_folder(new, folder, aside=temporary / _ASIDE)
    except OSError as error:
        if error.errno in NO_SPACE:
            raise disk_full(folder) from error
        _named_by_user(error, temporary, folder)
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _remove_unfinished(folder: Path) -> None:
    """Remove what killed processes left of ``publish_folder``: marked as ours, and locked by nobody who still lives."""
    pattern = re.compile(rf"\.{re.escape(folder.name[:_SHOWN])}\.[0-9a-f]{{8}}\.tmp")
    for path in folder.parent.iterdir() if folder.parent.is_dir() else ():
        if pattern.fullmatch(path.name) and not path.is_symlink() and (path / UNFINISHED).is_file():
            try:
                with open(path / UNFINISHED, "r+b") as mark:
                    if try_lock(mark, fcntl.LOCK_EX):
                        if (path / _ASIDE).is_dir() and not folder.exists():  # killed in the moment of the exchange
                            (path / _ASIDE).rename(folder)
                        shutil.rmtree(path, ignore_errors=True)
            except OSError:  # another process is writing it, or may write where we may not
                continue


def replace_folder(new: Path, folder: Path, *, aside: Path | None = None) -> None:
    """Rename ``new`` to ``folder`` durably; if that fails, the previous ``folder`` gets its name back.

    Args:
        new: A finished folder next to ``folder``.
        folder: The path that it is renamed to.
        aside: Path of the previous ``folder`` during the exchange, for callers that look for it after a kill.
    """
    # A folder with content cannot be replaced by one rename. After a kill between the two, ``folder`` is missing, and
    # the previous one is complete under the name ``aside``.
    aside = aside or new.with_name(f"{new.name}.old")
    is_replaced = folder.exists()
    if is_replaced:
        folder.rename(aside)
    try:
        new.rename(folder)
    except OSError:
        if is_replaced:
            aside.rename(folder)
        raise
    sync_folder(folder.parent)
    if is_replaced:
        shutil.rmtree(aside, ignore_errors=True)


def disk_full(path: Path) -> DataError:
    """Return the error for a write to ``path`` that failed for lack of space."""
    folder = next(parent for parent in path.absolute().parents if parent.is_dir())
    free_mib = shutil.disk_usage(folder).free / 2**20
    return DataError(
        f"{path.parent}: no space left while {path.name} was written ({free_mib:.1f} MiB free). "
        "What was finished is kept: free some space and run the same command again."
    )


def atomic_write(path: Path | str, content: bytes | str) -> None:
    """Write ``content`` so that readers see ``path`` whole or not at all."""
    data = content.encode() if isinstance(content, str) else content
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)
