"""Which files a build reads, and in which pieces."""

import glob
import re
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from data_prep.config import SourceConfig
from megabert.errors import DataError

MIN_CHUNK_BYTES = 256 * 1024
CHUNKS_OF_A_SMALL_INPUT = 16
SCAN_BYTES = 1 << 20
BORDER_BYTES = 64  # a blank line with more spaces than this may be missed as a place to cut, not as a border
# In these a line feed byte may be half of another character, so a file cannot be cut at it.
UNCUTTABLE = re.compile(r"(utf.?(16|32|7)|u(16|32|7)|iso.?2022|hz)", re.IGNORECASE)
BORDERS = {"jsonl": re.compile(rb"\n"), "text": re.compile(rb"\n[ \t\r\f\v]*\n")}


@dataclass(frozen=True)
class InputFile:
    """One file of a source."""

    path: str
    """As found."""
    bytes: int
    """Size."""
    source: int
    """Index of its source."""
    format: str
    """``text`` or ``jsonl``."""
    encoding: str
    """Of its text."""
    field: str
    """JSON Lines: key of the text."""


@dataclass(frozen=True)
class Chunk:
    """The documents of a file that start in ``[start, end)``."""

    file: InputFile
    start: int
    end: int


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
    paths = sorted(path for path in glob.glob(source.input, recursive=True) if Path(path).is_file())
    if not paths and Path(source.input).is_dir():
        raise DataError(f"{source.input}: is a folder. Give --input its files, such as '{source.input}/*.txt'.")
    if not paths:
        raise DataError(f"{source.input}: no such file. Give --input an existing path, or a quoted glob that matches.")
    return [
        InputFile(path, Path(path).stat().st_size, index, _format(path, source), source.encoding, source.field)
        for path in paths
    ]


def _format(path: str, source: SourceConfig) -> str:
    if source.format != "auto":
        return source.format
    suffix = Path(path).suffix.lower()
    if suffix in (".jsonl", ".ndjson"):
        return "jsonl"
    if suffix in (".txt", ".text", ""):
        return "text"
    raise DataError(f"{path}: cannot tell the format from the name. Say --format text or --format jsonl.")


def plan_chunks(files: list[InputFile], chunk_bytes: int) -> list[Chunk]:
    """Cut files into chunks of about ``chunk_bytes``, smaller for small inputs so that several workers share them.

    The plan depends on the files alone, never on the number of workers.
    """
    total = sum(file.bytes for file in files)
    size = min(chunk_bytes, max(MIN_CHUNK_BYTES, total // CHUNKS_OF_A_SMALL_INPUT))
    chunks = []
    for file in files:
        step = file.bytes if UNCUTTABLE.match(file.encoding) else size
        chunks += [Chunk(file, start, min(start + step, file.bytes)) for start in range(0, file.bytes, max(step, 1))]
    return chunks


def chunk_bounds(chunk: Chunk, stream: BinaryIO) -> tuple[int, int]:
    """Return the first and last byte of the documents that start in the chunk.

    A document belongs to the chunk in which the border before it ends, so each has exactly one.
    """
    border = BORDERS[chunk.file.format]
    start = 0 if chunk.start == 0 else _after_border(stream, chunk.start, chunk.file.bytes, border)
    end = (
        chunk.file.bytes
        if chunk.end >= chunk.file.bytes
        else _after_border(stream, chunk.end, chunk.file.bytes, border)
    )
    return start, max(start, end)


def _after_border(stream: BinaryIO, nominal: int, size: int, border: re.Pattern[bytes]) -> int:
    """Return where the first document at or after ``nominal`` starts; ``size`` if there is none."""
    # A border may begin before the nominal place and end exactly at it.
    begin = max(0, nominal - BORDER_BYTES)
    stream.seek(begin)
    held, searched = b"", 0
    while block := stream.read(SCAN_BYTES):
        held += block
        for match in border.finditer(held, max(0, searched - BORDER_BYTES)):
            if begin + match.end() >= nominal:
                return begin + match.end()
        searched = len(held)
    return size
