"""Which files a build reads, and in which pieces."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePosixPath
from typing import BinaryIO

from data_prep.config import SourceConfig
from data_prep.extract.opening import COMPRESSIONS, file_size, find_paths
from megabert.errors import DataError

MIN_CHUNK_BYTES = 256 * 1024
CHUNKS_OF_A_SMALL_INPUT = 16
SCAN_BYTES = 1 << 20
BORDER_BYTES = 64  # a blank line with more spaces than this may be missed as a place to cut, not as a border
# In these a line feed byte may be half of another character, so a file cannot be cut at it.
UNCUTTABLE = re.compile(r"(utf.?(16|32|7)|u(16|32|7)|iso.?2022|hz)", re.IGNORECASE)
BORDERS = {
    "jsonl": re.compile(rb"\n"),
    "text": re.compile(rb"\n[ \t\r\f\v]*\n"),
    "wikipedia": re.compile(rb"</page>[ \t\r]*\n?"),
}
FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".txt": "text",
    ".text": "text",
    "": "text",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".xml": "wikipedia",
}


@dataclass(frozen=True)
class InputFile:
    """One file of a source."""

    path: str
    """As found; perhaps a URL."""
    bytes: int
    """Size as stored."""
    source: int
    """Index of its source."""
    format: str
    """``text``, ``book``, ``jsonl``, ``parquet``, ``arrow`` or ``wikipedia``."""
    encoding: str
    """Of its text."""
    field: str
    """JSON Lines, Parquet, Arrow: where the text is."""
    compression: str = ""
    """``gz``, ``bz2``, ``zst``, ``xz`` or nothing."""


@dataclass(frozen=True)
class InputChunk:
    """A part of a file; what ``start`` and ``end`` count depends on the format.

    Bytes as stored (documents that start there belong to the chunk), row groups of Parquet, record batches of Arrow,
    or compressed bytes from one member's start to another's.
    """

    file: InputFile
    start: int
    end: int
    bytes: int
    """As stored, for progress."""


def find_files(sources: tuple[SourceConfig, ...]) -> list[InputFile]:
    """Expand the sources' globs, in order, each source's files sorted by name.

    Raises:
        DataError: A glob matches nothing, a format cannot be told, an encoding is unknown, or all files are empty.
    """
    files = [file for index, source in enumerate(sources) for file in _files_of(index, source)]
    if not sum(file.bytes for file in files):
        raise DataError(f"The corpus is empty: {len(files)} file(s) of 0 bytes. Give --input files that hold text.")
    return files


def _files_of(index: int, source: SourceConfig) -> list[InputFile]:
    try:
        "".encode(source.encoding)
    except LookupError:
        raise DataError(
            f"{source.title}: unknown encoding {source.encoding!r}. Use a name that Python knows, such as utf-8, "
            "cp1252, cp949 or gb18030."
        ) from None
    paths = find_paths(source.input)
    if not paths:
        raise DataError(f"{source.input}: no such file. Give --input an existing path, or a quoted glob that matches.")
    found = []
    for path in paths:
        kind, compression = _kind(path, source)
        found.append(InputFile(path, file_size(path), index, kind, source.encoding, source.field, compression))
    return found


def _kind(path: str, source: SourceConfig) -> tuple[str, str]:
    """Return format and compression, from the name where they are not given."""
    name = PurePosixPath(path)
    compression = COMPRESSIONS.get(name.suffix.lower(), "")
    if compression:
        name = name.with_suffix("")
    if source.format != "auto":
        return source.format, compression
    suffix = name.suffix.lower()
    # A dump is named such as enwiki-20260101-pages-articles1.xml-p1p41242.
    kind = "wikipedia" if re.search(r"pages-articles.*\.xml", name.name) else FORMATS.get(suffix)
    if kind is None:
        raise DataError(f"{path}: cannot tell the format from the name. Say --format, such as --format text.")
    if kind in ("parquet", "arrow"):
        compression = ""
    return kind, compression


def plan_chunks(files: list[InputFile], chunk_bytes: int) -> list[InputChunk]:
    """Cut files into chunks of about ``chunk_bytes``, smaller for small inputs so that several workers share them.

    The plan depends on the files alone, never on the number of workers. Compressed files are one chunk each, but
    for multistream dumps.
    """
    total = sum(file.bytes for file in files)
    size = min(chunk_bytes, max(MIN_CHUNK_BYTES, total // CHUNKS_OF_A_SMALL_INPUT))
    return [chunk for file in files for chunk in _chunks_of(file, size)]


def _chunks_of(file: InputFile, size: int) -> Iterator[InputChunk]:
    if not file.bytes:
        return
    if file.format in ("parquet", "arrow"):
        from data_prep.extract.columns import parts_of

        parts = parts_of(file)
        yield from _grouped(file, parts, size)
    elif file.format == "wikipedia" and file.compression == "bz2":
        from data_prep.extract.multistream import stream_starts

        starts = stream_starts(file.path, file.bytes)
        borders = [*starts, file.bytes]
        groups = list(_grouped(file, [b - a for a, b in pairwise(borders)], size))
        yield from (InputChunk(file, borders[group.start], borders[group.end], group.bytes) for group in groups)
    elif file.compression or file.format == "book" or UNCUTTABLE.match(file.encoding):
        yield InputChunk(file, 0, file.bytes, file.bytes)
    else:
        for start in range(0, file.bytes, size):
            end = min(start + size, file.bytes)
            yield InputChunk(file, start, end, end - start)


def _grouped(file: InputFile, sizes: list[int], wanted: int) -> Iterator[InputChunk]:
    """Yield runs of consecutive parts of at least ``wanted`` bytes, the last perhaps less."""
    first = held = 0
    for index, size in enumerate(sizes):
        held += size
        if held >= wanted or index + 1 == len(sizes):
            yield InputChunk(file, first, index + 1, held)
            first, held = index + 1, 0


def chunk_bounds(chunk: InputChunk, stream: BinaryIO) -> tuple[int, int]:
    """Return the first and last byte of the documents that start in the chunk.

    A document belongs to the chunk in which the border before it ends, so each has exactly one.
    """
    border, size = BORDERS[chunk.file.format], chunk.file.bytes
    start = 0 if chunk.start == 0 else _after_border(stream, chunk.start, size, border)
    end = size if chunk.end >= size else _after_border(stream, chunk.end, size, border)
    return start, max(start, end)


def _after_border(stream: BinaryIO, nominal: int, size: int, border: re.Pattern[bytes]) -> int:
    """Return where the first document at or after ``nominal`` starts; ``size`` if there is none."""
    # A border may begin before the nominal place and end exactly at it.
    begin = max(0, nominal - BORDER_BYTES)
    stream.seek(begin)
    held = b""
    while block := stream.read(SCAN_BYTES):
        held += block
        for match in border.finditer(held):
            # One that touches the end of what was read may go on.
            if begin + match.end() >= nominal and (match.end() < len(held) or begin + len(held) >= size):
                return begin + match.end()
        kept = min(len(held), BORDER_BYTES)
        begin, held = begin + len(held) - kept, held[-kept:]
    return size
