"""The one way to files: only regular files are read, and nothing is written through a link.

Files and folders appear whole or not at all: a temporary name, fsync, rename. A link in the place of an output is
replaced by it, so that a folder from elsewhere cannot lead a command to a file elsewhere. Files that grow (logs,
metrics, records, locks) are opened in their place, and a link there is refused. Other modules open no file by
themselves; ``tests/unit/foundation/test_files_elsewhere.py`` holds them to it.
"""

import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import IO, Any
from weakref import WeakSet

from megabert.foundation.errors import ConfigError, DataError
from megabert.foundation.full_disk import NO_SPACE, disk_full

MAX_SMALL_BYTES = 64 << 20
"""Most bytes of a file that is read as a whole and parsed: JSON, YAML, a vocabulary. The largest known tokenizer.json,
of 256,000 pieces, has 34 MB."""
UNDER_WAY: set[Path] = set()
"""Temporary files and folders that this process has not yet given their names or removed."""
_LOCKS: "WeakSet[IO[str]]" = WeakSet()
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}\.tmp(\.old)?", re.DOTALL)
NAME_SHOWN = 40
"""Characters of a name that its temporary name begins with; a whole name and a suffix may be too long together."""


def _refuse_special(path: Path | str, mode: int, *, device: int | None = None) -> None:
    """Raise an OSError for anything but a regular file: a pipe keeps its reader waiting, a device may never end."""
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder, not a file", str(path))
    kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
    kind = kinds.get(stat.S_IFMT(mode))
    if kind is None and device is not None and os.path.isdir("/proc") and device == os.stat("/proc").st_dev:
        kind = "a file of the kernel's"  # /proc/kmsg waits, /proc/kcore has 128 TiB
    if kind is not None:
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))


def check_regular(path: Path | str) -> None:
    """Refuse anything but a regular file before a library opens it.

    Raises:
        OSError: The path is missing, or is a folder, a pipe, a socket, a device or a file of the kernel's.
    """
    status = os.stat(path)
    _refuse_special(path, status.st_mode, device=status.st_dev)


def open_to_read(path: Path | str) -> BufferedReader:
    """Open a regular file for reading.

    Raises:
        OSError: As `check_regular`, or the file cannot be opened.
    """
    check_regular(path)
    # O_NONBLOCK: a pipe that took the file's place meanwhile would keep us waiting. On files it changes nothing.
    stream = os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb")
    try:
        _refuse_special(path, os.fstat(stream.fileno()).st_mode)
    except OSError:
        stream.close()
        raise
    return stream


def read_small(path: Path | str, *, most: int = MAX_SMALL_BYTES) -> bytes:
    """Return the content of a file that is parsed as a whole.

    Args:
        path: The file.
        most: Bytes that such a file may have.

    Raises:
        OSError: As `open_to_read`, or the file has more bytes.
    """
    with open_to_read(path) as stream:
        # Read also when the size was right: the file may be growing.
        is_large = os.fstat(stream.fileno()).st_size > most
        content = b"" if is_large else stream.read(most + 1)
    if is_large or len(content) > most:
        size = f"{most >> 20} MiB" if most >= 1 << 20 else f"{most:,} bytes"
        raise OSError(errno.EFBIG, f"it has more than the {size} that such a file may have", str(path))
    return content


def sha256_file(path: Path | str) -> str:
    """Return the SHA-256 of a file's bytes as 64 hexadecimal digits.

    Raises:
        DataError: The file cannot be read.
    """
    try:
        with open_to_read(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}). Check that it exists and its permissions."
        ) from error


def sync_file(path: Path | str) -> None:
    """Make the content of a file durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


sync_folder = sync_file
"""Makes durable which names a folder has; without it a power cut can undo a rename."""


def write_durably(path: Path | str, content: bytes) -> None:
    """Write and sync a small new file. It is meant for files of a folder that is renamed once it is whole."""
    with open(path, "xb") as stream:  # x: neither a file nor a link is there
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


def open_in_place(path: Path | str, flags: int) -> int:
    """Open a file of ours that is changed in its place; make it, and its folder, if there is none.

    Args:
        path: The file.
        flags: Flags of ``os.open``: ``os.O_RDWR``, ``os.O_WRONLY | os.O_APPEND``.

    Returns:
        The descriptor.

    Raises:
        DataError: There is a link, a folder, a pipe or a device.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise
    else:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
    raise DataError(f"{path}: is a link, a folder, a pipe or a device, where a file of ours belongs. Remove it.")


def open_to_append(path: Path | str) -> IO[str]:
    """Open a text file of ours to add to its end, as `open_in_place` does."""
    return os.fdopen(open_in_place(path, os.O_WRONLY | os.O_APPEND), "a", encoding="utf-8")


def open_lock(path: Path) -> IO[str]:
    """Open a lock file for reading and writing, as `open_in_place` does."""
    stream = os.fdopen(open_in_place(path, os.O_RDWR), "r+", encoding="utf-8", errors="replace")
    _LOCKS.add(stream)
    return stream


def refuse_linked_folders(root: Path, names: Iterable[str]) -> None:
    """Refuse links in the place of folders that a command writes to; ``root`` itself, which the user named, may be one.

    Args:
        root: A run folder, a build or the results of a fine-tuning.
        names: Folders in it; ``*`` stands for any name.

    Raises:
        DataError: One of them is a link.
    """
    for name in names:
        for path in root.glob(name) if "*" in name else [root / name]:
            if path.is_symlink():
                raise DataError(
                    f"{path}: is a link, where a folder of ours belongs. Remove it; {root} as a whole may be a link."
                )


def is_anything_open() -> bool:
    """Return whether this process has a file under way, or holds a lock: then it has to end in order."""
    return bool(UNDER_WAY) or any(not stream.closed for stream in _LOCKS)


def remove_path(path: Path, *, ignore_errors: bool = False) -> None:
    """Remove a file, a link or a whole folder, if there is one; or as much of a folder as can be removed."""
    shutil.rmtree(path, ignore_errors=ignore_errors) if path.is_dir() and not path.is_symlink() else path.unlink(
        missing_ok=True
    )


def remove_under_way() -> None:
    """Remove the temporary files and folders of a process that ends."""
    for path in list(UNDER_WAY):
        with suppress(OSError):
            remove_path(path, ignore_errors=True)


def remove_killed_writes(root: Path, patterns: Iterable[str]) -> None:
    """Remove temporary files of a killed process from a folder whose lock this one holds.

    Args:
        root: The folder; other commands write to it as well, without its lock.
        patterns: Where the lock's holder has temporary files, as globs.
    """
    for path in [path for pattern in patterns for path in root.glob(pattern) if is_temporary(path)]:
        remove_path(path)


def is_temporary(path: Path) -> bool:
    """Whether a name is one that `atomic_path` and ``publish_folder`` give to unfinished files and folders."""
    return _TEMPORARY.fullmatch(path.name) is not None


def check_replaceable(path: Path, *, is_folder: bool) -> None:
    """Refuse to replace anything but nothing, a link, or something of the same kind: never a device or a pipe."""
    wanted = "folder" if is_folder else "file"
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):  # the first write names the missing folder
        mode = None
    except OSError as error:  # a loop of links, a name too long, a closed folder
        raise DataError(f"{path}: cannot be written ({error.strerror}). Name another {wanted}.") from None
    if mode is not None and not (stat.S_ISDIR if is_folder else stat.S_ISREG)(mode):
        kind = "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "device or pipe"
        raise DataError(f"{path}: is a {kind}. Name a {wanted}{' in it' if kind == 'folder' else ''}.")
    # /dev/stdout is a link to whatever standard output is.
    if path.is_symlink() and Path(os.path.realpath(path.parent)).parts[:2] in (("/", "dev"), ("/", "proc")):
        raise DataError(f"{path}: is the system's. Name a {wanted}.")


def check_saved_file(path: Path, *, flag: str) -> None:
    """Refuse, before minutes of work, a file that their result could not be written to.

    Raises:
        ConfigError: Its folder does not exist.
        DataError: A folder, a device or a pipe is in its place.
    """
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"{flag} {path}: the folder {path.parent} does not exist. Create it.")
    check_replaceable(path, is_folder=False)


def refuse_input(output: Path, *inputs: Path) -> None:
    """Refuse to write over the input of a command, by whatever name or link.

    Args:
        output: A file that the command writes.
        inputs: Files, and folders whose files are meant.

    Raises:
        ConfigError: The output is one of them.
    """
    for path in [path for given in inputs for path in (given, *(given.iterdir() if given.is_dir() else ()))]:
        with suppress(OSError):
            if output.samefile(path):
                raise ConfigError(f"{output}: is {path}, which this command reads. Name another file.")


@contextmanager
def under_way(path: Path) -> Iterator[Path]:
    """Yield a new temporary name next to a path; in the end nothing has that name.

    Raises:
        DataError: The disk is full; the message names the folder and its free space.
    """
    # Random, so that two writers (threads, hosts, containers) never share one.
    temporary = path.with_name(f".{path.name[:NAME_SHOWN]}.{secrets.token_hex(4)}.tmp")
    UNDER_WAY.add(temporary)
    try:
        yield temporary
    except OSError as error:
        # Within a folder that is being published, its own error names the folder.
        if error.errno in NO_SPACE and not any(map(is_temporary, path.parents)):
            raise disk_full(path, error) from error
        if str(error.filename) == str(temporary):  # a name that no user knows
            error.filename = str(path)
        raise
    finally:
        with suppress(OSError):
            remove_path(temporary, ignore_errors=True)
        UNDER_WAY.discard(temporary)


@contextmanager
def atomic_path(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path next to ``path``; on success sync it and rename it to ``path``.

    On any error the temporary file is removed and ``path`` is as it was. A symbolic link is replaced; its target stays
    as it is.

    Raises:
        DataError: ``path`` is a folder, a device or a loop of links, or the disk is full.
    """
    path = Path(path)
    check_replaceable(path, is_folder=False)
    with under_way(path) as temporary:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        sync_file(temporary)
        os.replace(temporary, path)
        sync_folder(path.parent)


def atomic_write(path: Path | str, content: bytes | str) -> None:
    """Write ``content`` so that readers see ``path`` whole or not at all."""
    data = content.encode() if isinstance(content, str) else content
    with atomic_path(path) as temporary, open(temporary, "xb") as stream:
        stream.write(data)
