"""Cutting input files into chunks that workers read independently, at borders of documents.

The plan is made from sizes alone, without reading text: a chunk of a text file is a range of bytes that begins and ends
anywhere. Whoever reads it looks for the first border of documents behind either end (`chunk_bounds`), so a document
belongs to the chunk in which the border before it ends, and every document has exactly one chunk.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import BinaryIO

from data_prep.extract.columns import part_sizes
from data_prep.extract.inputs import InputChunk, InputFile
from data_prep.extract.multistream import stream_starts

MIN_CHUNK_BYTES = 256 * 1024
CHUNKS_OF_A_SMALL_INPUT = 16
"""Chunks that an input is cut into, at least, unless they would be smaller than ``MIN_CHUNK_BYTES``."""
SCAN_BYTES = 1 << 20
BORDER_BYTES = 64
"""Length of the longest border that is recognized if a block's end cuts it. A blank line with more spaces may be
missed where a file is cut, never where documents are told apart."""
# In these encodings a line feed byte may be half of another character, so a file cannot be cut at it.
UNCUTTABLE = re.compile(r"(utf.?(16|32|7)|u(16|32|7)|iso.?2022|hz)", re.IGNORECASE)
BORDERS = {
    "jsonl": re.compile(rb"\n"),
    "text": re.compile(rb"\n[ \t\r\f\v]*\n"),
    "wikipedia": re.compile(rb"</page>[ \t\r]*\n?"),
}
"""What ends a document, by format."""


def plan_chunks(files: list[InputFile], chunk_bytes: int) -> list[InputChunk]:
    """Cut files into chunks of about ``chunk_bytes``, smaller for small inputs so that several workers share them.

    The plan depends on the files alone, never on the number of workers. Compressed files are one chunk each, except
    multistream dumps.
    """
    total = sum(file.bytes for file in files)
    size = min(chunk_bytes, max(MIN_CHUNK_BYTES, total // CHUNKS_OF_A_SMALL_INPUT))
    return [chunk for file in files for chunk in _chunks_of(file, size)]


def _chunks_of(file: InputFile, size: int) -> Iterator[InputChunk]:
    if not file.bytes:
        return
    if file.format in ("parquet", "arrow"):
        yield from _grouped(file, part_sizes(file), size)
    elif file.format == "wikipedia" and file.compression == "bz2":
        borders = [*stream_starts(file.path, file.bytes), file.bytes]
        for group in _grouped(file, [end - start for start, end in pairwise(borders)], size):
            yield InputChunk(file, borders[group.start], borders[group.end], group.bytes)
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
    """Return the first byte of the documents that start in a chunk, and the first byte behind them."""
    border, size = BORDERS[chunk.file.format], chunk.file.bytes
    start = 0 if chunk.start == 0 else _after_border(stream, chunk.start, size, border)
    end = size if chunk.end >= size else _after_border(stream, chunk.end, size, border)
    return start, max(start, end)


def _after_border(stream: BinaryIO, nominal: int, size: int, border: re.Pattern[bytes]) -> int:
    """Return where the first document at or after ``nominal`` starts; ``size`` if there is none."""
    # A border may begin before the nominal end of the chunk and end exactly at it.
    begin = max(0, nominal - BORDER_BYTES)
    stream.seek(begin)
    held = b""
    while block := stream.read(SCAN_BYTES):
        held += block
        for match in border.finditer(held):
            # A match that touches the end of what was read may be longer in the file.
            is_whole = match.end() < len(held) or begin + len(held) >= size
            if begin + match.end() >= nominal and is_whole:
                return begin + match.end()
        # A border may also be cut by the end of a block: keep the end of this one.
        kept = min(len(held), BORDER_BYTES)
        begin, held = begin + len(held) - kept, held[-kept:]
    return size
