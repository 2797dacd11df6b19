"""Input files: their bytes in blocks of bounded size, however stored and compressed."""

import bz2
import glob
import hashlib
import lzma
import os
import zlib
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from data_prep.execution.records import Problems
from megabert.foundation.errors import DataError
from megabert.foundation.files import check_regular, open_to_read, sha256_file
from megabert.foundation.json_files import reading
from megabert.foundation.remote_files import is_url, remote, remote_size

BLOCK_BYTES = 1 << 20
COMPRESSIONS = {".gz": "gz", ".bz2": "bz2", ".zst": "zst", ".xz": "xz"}
# A decompressor takes one member (gzip) or stream (bzip2, xz) of a file; a file may hold several end to end.
_MEMBERS: dict[str, Callable[[], Any]] = {
    "gz": lambda: zlib.decompressobj(wbits=31),
    "bz2": bz2.BZ2Decompressor,
    "xz": lzma.LZMADecompressor,
}


@dataclass(frozen=True)
class InputFile:
    """One file of a source."""

    path: str
    """Path as it was found; perhaps a URL."""
    bytes: int
    """Size as stored."""
    source: int
    """Index of its source."""
    format: str
    """``text``, ``book``, ``jsonl``, ``parquet``, ``arrow``, ``wikipedia`` or, of ids alone, ``npy``."""
    encoding: str
    """Encoding of its text."""
    field: str
    """JSON Lines, Parquet, Arrow: the key or column that holds the text or the ids."""
    compression: str = ""
    """``gz``, ``bz2``, ``zst``, ``xz`` or nothing."""
    holds_ids: bool = False
    """Whether its documents are lists of ids."""
    second_field: str = ""
    """The key or column that holds the ids of B, if documents are pairs."""
    modified_ns: int = 0
    """Time of the last change when the build began; 0 for a URL."""

    def require_unchanged(self) -> None:
        """Refuse text of a file that was replaced or written to since the build began, whose hash nobody recorded.

        Raises:
            DataError: Size or time are others now.
        """
        if not self.modified_ns:
            return
        size, modified_ns = size_and_time(self.path)
        if (size, modified_ns) != (self.bytes, self.modified_ns):
            raise DataError(
                f"{self.path}: changed while the build read it ({self.bytes:,} bytes before, {size:,} now). "
                "Run the same command again once nobody writes to it."
            )


@dataclass(frozen=True)
class InputChunk:
    """A part of an input file that one unit of work reads: whole documents, of bounded size where the format allows.

    What ``start`` and ``end`` count depends on the format: bytes as stored (documents that start there belong to the
    chunk), row groups of Parquet, record batches of Arrow, or compressed bytes from one member's start to another's.
    """

    file: InputFile
    start: int
    end: int
    bytes: int
    """Size as stored, for progress."""


def find_paths(pattern: str) -> list[str]:
    """Return the files that a path, a glob or a URL names, sorted. A name that exists is no glob.

    Raises:
        DataError: The pattern names a folder, one on the way may not be read, or a match is no regular file.
    """
    if is_url(pattern):
        with remote(pattern) as (filesystem, path):
            is_file = filesystem.isfile
            names = [path] if is_file(path) else filter(is_file, filesystem.glob(path))
            return sorted(map(filesystem.unstrip_protocol, names))
    if os.path.isdir(pattern):
        raise DataError(f"{pattern}: is a folder. Give --input its files, such as '{pattern}/*.txt'.")
    return sorted(filter(_is_file, [pattern] if os.path.lexists(pattern) else _matches(pattern)))


def _is_file(path: str) -> bool:
    """Return whether a match is a file and no folder; anything else, whose text would be left out, is an error."""
    if os.path.isfile(path):
        return True
    if os.path.isdir(path):
        return False
    if os.path.islink(path) and not os.path.exists(path):
        raise DataError(f"{path}: is a link to nothing that can be reached. Fetch its file, or leave it out.")
    with reading(Path(path)):
        check_regular(path)
    return True


def _matches(pattern: str) -> Iterator[str]:
    """Return the matches of a glob; a folder without permission, which it passes over in silence, is an error."""
    path = Path(pattern)
    for folder, entry in pairwise([*reversed(path.parents), path]):
        needed = os.R_OK | os.X_OK if glob.has_magic(str(entry)) else os.X_OK
        for match in glob.iglob(os.path.join(folder, ""), recursive=True):
            # The folder of lost files belongs to the system, and every mounted disk has one.
            if not os.access(match, needed) and Path(match).name != "lost+found":
                raise DataError(
                    f"{Path(match)}: this folder may not be read. Give yourself permission (chmod u+rx {Path(match)}), "
                    "or leave it out."
                )
    return glob.iglob(pattern, recursive=True)


def size_and_time(path: str) -> tuple[int, int]:
    """Return a file's bytes as stored, and the time of its last change in nanoseconds, which is 0 for a URL."""
    if is_url(path):
        return remote_size(path), 0
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


def file_identity(path: str) -> Hashable:
    """Return what two paths of one local file have in common, links or not; the path itself of a URL."""
    if is_url(path):
        return path
    status = os.stat(path)
    return status.st_dev, status.st_ino


def input_sha256(path: str) -> str:
    """Return the SHA-256 of a local file's bytes, or of the key by which a URL's file system knows its content."""
    if is_url(path):
        with remote(path) as (filesystem, name):
            return hashlib.sha256(str(filesystem.ukey(name)).encode()).hexdigest()
    return sha256_file(path)


def open_stored(path: str) -> BinaryIO:
    """Open a file's bytes as stored.

    Raises:
        DataError: The file cannot be read.
    """
    if is_url(path):
        with remote(path) as (filesystem, name):
            return filesystem.open(name, "rb")
    with reading(Path(path)):
        return open_to_read(path)


def _stored_blocks(stream: BinaryIO, start: int, end: int) -> Iterator[bytes]:
    """Yield the bytes ``start`` to ``end`` of an open file."""
    stream.seek(start)
    while start < end and (block := stream.read(min(BLOCK_BYTES, end - start))):
        start += len(block)
        yield block


def content_blocks(file: InputFile, problems: Problems, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """Yield the content of a file, or of some of its compressed members.

    A damaged or cut end is counted as a problem; the content before it is used.

    Args:
        file: The file.
        problems: Counts a damaged end.
        start: First byte as stored; in a compressed file the start of a member.
        end: End of the bytes as stored; by default the end of the file.
    """
    with open_stored(file.path) as stream:
        if file.compression == "zst":
            yield from _zstd_blocks(file, stream, problems)
            return
        end = file.bytes if end is None else end
        blocks = _stored_blocks(stream, start, end)
        yield from _member_blocks(file, blocks, problems, start, end) if file.compression else blocks


def _member_blocks(
    file: InputFile, blocks: Iterator[bytes], problems: Problems, start: int, end: int
) -> Iterator[bytes]:
    """Decompress members one after the other; ``data`` is the rest of a block."""
    compression, read, is_open = file.compression, start, False
    member = _MEMBERS[compression]()
    for block in blocks:
        data = block
        read += len(block)
        while data:
            if not is_open:
                # Between members; tapes fill the rest of a block with zeros, and xz pads its streams.
                data = data if compression == "bz2" else data.lstrip(b"\0")
                member, is_open = _MEMBERS[compression](), bool(data)
                continue
            try:
                # Each call returns a bounded piece: a small block may hold gigabytes of zeros.
                content, data = _decompress(member, data)
                while content:
                    yield content
                    content, data = _decompress(member, data) if not member.eof else (b"", data)
            except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
                message = f"{file.path}: damaged {compression} before byte {read} of {file.bytes} ({error})"
                problems.lose_end("damaged_files", message, end - read + len(data))
                return
            is_open = not member.eof
    if is_open:
        problems.lose_end("cut_files", f"{file.path}: its {compression} data end too early, after {read} bytes")


def _decompress(member: Any, data: bytes) -> tuple[bytes, bytes]:
    """Return at most a block of content, and the part of the data that is left for the next call or member."""
    content = member.decompress(data, BLOCK_BYTES)
    if member.eof:
        return content, member.unused_data
    return content, getattr(member, "unconsumed_tail", b"")  # bz2 and xz keep the rest inside


def _zstd_blocks(file: InputFile, stream: BinaryIO, problems: Problems) -> Iterator[bytes]:
    read = 0
    try:
        with pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), "zstd") as content:
            while block := content.read(BLOCK_BYTES):
                read = stream.tell()
                yield block
    except OSError as error:
        if "too much memory" in str(error):  # a limit of the decoder: the file may be sound
            raise DataError(
                f"{file.path}: was compressed with a window above 128 MiB (`zstd --long`), which is not read. "
                f"Unpack it first: zstd -d --long=31 {file.path}"
            ) from error
        if "Dictionary mismatch" in str(error):
            raise DataError(
                f"{file.path}: was compressed with a dictionary (`zstd -D`), which is not read. Unpack it first: "
                f"zstd -d -D DICTIONARY {file.path}"
            ) from error
        message = f"{file.path}: its zst data are damaged or end too early ({str(error).splitlines()[0]})"
        problems.lose_end("cut_files", message, file.bytes - read)
