"""Files and folders that appear whole or not at all (temporary name, fsync, rename); locks and the SHA-256 of files."""

import errno
import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from megabert.errors import DataError

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


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


@contextmanager
def atomic_path(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path next to ``path``; on success sync it and rename it to ``path``.

    On any error the temporary file is removed and ``path`` is as it was. The temporary name holds random bits, so two
    writers (threads, hosts, containers) never share one.

    Raises:
        DataError: ``path`` is a folder, or the disk is full; the message names the folder and its free space.
    """
    path = Path(path)
    if path.is_dir():
        raise DataError(f"{path}: is a folder. Name a file in it.")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        sync_file(temporary)
        os.replace(temporary, path)
        sync_folder(path.parent)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            raise disk_full(path) from error
        raise


@contextmanager
def publish_folder(folder: Path | str) -> Iterator[Path]:
    """Yield an empty temporary folder; on success it is synced with all that is in it and becomes ``folder``.

    A folder that is already there is moved aside for the moment of the exchange and removed afterwards, so a reader
    sees the previous content or the new one, never half of either. On any error the temporary folder is removed and
    ``folder`` is as it was.

    Raises:
        DataError: The disk is full; the message names the folder and its free space.
    """
    folder = Path(folder)
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        for path in temporary.rglob("*"):
            sync_file(path)
        sync_folder(temporary)
        replace_folder(temporary, folder)
    except OSError as error:
        if error.errno in NO_SPACE:
            raise disk_full(folder) from error
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


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
