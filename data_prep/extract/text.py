"""Documents of text files, JSON Lines and books.

How a byte becomes a document: `content_blocks` yields a file's content, decompressed, in blocks of a MiB that end
anywhere. `chunk_blocks` restricts them to one chunk, both of whose ends it moves to the next border between documents.
`grouped` cuts the blocks anew, so that each group ends at such a border and no character is cut in half. Encodings in
which a line feed cannot be told by its byte are recoded to UTF-8 before that (`_recoded`). `_decode` decodes a group
strictly. Only then the reader of the format cuts the text into documents.
"""

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, pairwise
from typing import BinaryIO, NamedTuple

from pydantic_core import from_json

from data_prep.config.languages import UNSPACED
from data_prep.execution.records import MAX_DOCUMENT_BYTES, Problems
from data_prep.extract.opening import InputChunk, InputFile, content_blocks, open_stored

NEAR_END_BYTES = 4096
BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
WRAPPED_UNSPACED = re.compile(rf"(?<={UNSPACED})\n(?={UNSPACED})")
"""A line end between characters of scripts without spaces."""
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
"""The end of a document, by format."""
ENCODING_REMEDY = "Give the file's real encoding, such as --encoding cp1252, or fix or leave out the file."


class Position(NamedTuple):
    """Where a document begins in a decoded text; its bytes are counted only when a message names them."""

    offset: int
    """The byte at which the text begins."""
    text: str
    characters: int

    def __str__(self) -> str:
        """Return the number of the byte."""
        return str(self.offset + len(self.text[: self.characters].encode()))


Document = tuple[int | Position, str]
"""Position in the file (a byte, or a row of a column), and the text."""


def text_documents(chunk: InputChunk, problems: Problems) -> Iterator[Document]:
    """Yield documents that are separated by blank lines."""
    recoded, groups = _groups(chunk, problems)
    for offset, text in (decoded for group in groups for decoded in _decode(recoded, *group, problems)):
        # The stretches between blank lines; the last one ends with the text.
        start = 0
        for end, following in [*(match.span() for match in BLANK_LINE.finditer(text)), (len(text), len(text))]:
            document = text[start:end]
            if document.strip():
                yield Position(offset, text, start), document
            start = following


def book_documents(chunk: InputChunk, problems: Problems) -> Iterator[Document]:
    """Yield the whole file as one document: blank lines separate paragraphs, the lines of a paragraph are joined.

    A space joins them, but not within a script that is written without spaces.
    """
    blocks: list[bytes] = []
    size = 0
    for block in content_blocks(chunk.file, problems):
        size += len(block)
        if size > MAX_DOCUMENT_BYTES:
            problems.oversized(chunk.file.path, "that is the file")
            return
        blocks.append(block)
    data = b"".join(blocks)
    if problems.is_cut:  # keep whole lines, for the last character may be cut in half
        data = data[: data.rfind(b"\n") + 1]
    for _, text in _decode(chunk, 0, data, problems):
        paragraphs = (WRAPPED_UNSPACED.sub("", part).replace("\n", " ") for part in BLANK_LINE.split(text))
        yield 0, "\n".join(paragraphs)


def jsonl_documents(chunk: InputChunk, problems: Problems) -> Iterator[Document]:
    """Yield the text of each line's object."""
    recoded, groups = _groups(chunk, problems)
    is_utf8, field = codecs.lookup(recoded.file.encoding).name == "utf-8", chunk.file.field
    for offset, data in groups:
        for line in data.removesuffix(b"\n").split(b"\n"):
            # The parser reads UTF-8 as it is stored. Only a line that it refuses is decoded and looked at closely.
            content = _stored_text(line, field) if is_utf8 else None
            if content is not None:
                yield offset, content
            else:
                for start, text in _decode(recoded, offset, line, problems):
                    yield from _decoded_line(chunk, start, text, problems)
            offset += len(line) + 1


def jsonl_lines(chunk: InputChunk, problems: Problems) -> Iterator[tuple[int, str]]:
    """Yield each line that is not blank."""
    recoded, groups = _groups(chunk, problems)
    for offset, data in groups:
        for line in data.removesuffix(b"\n").split(b"\n"):
            for start, text in _decode(recoded, offset, line, problems):
                yield from ((start, part) for part in text.split("\n") if part and not part.isspace())
            offset += len(line) + 1


def _decoded_line(chunk: InputChunk, start: int, text: str, problems: Problems) -> Iterator[Document]:
    """Yield the text of a line that is decoded, and count it if it has none; carriage returns may part it further."""
    for number, line in enumerate(text.split("\n")):
        if not line or line.isspace():
            continue
        problem, content = _text_of(line, chunk.file.field)
        if problem:
            # The number is counted from the start of the file, so only for the lines that are shown.
            where = f"line {line_number(chunk, start) + number}" if problems.shows("bad_lines") else "a line"
            remedy = "Fix or remove the line; the key is chosen with --field, and --format text reads plain text."
            problems.require("bad_lines", f"{chunk.file.path}: {where} {problem}", remedy)
        else:
            yield start, content


def _stored_text(line: bytes, field: str) -> str | None:
    """Return the text of a line of UTF-8 that holds a JSON object with one; None for every other line."""
    try:
        value = from_json(line, cache_strings="keys")  # in half the time of Python's parser; refuses other encodings
    except ValueError:
        return None
    content = value.get(field) if isinstance(value, dict) else None
    return content if isinstance(content, str) else None


def _text_of(line: str, field: str) -> tuple[str, str]:
    """Return ("", text) for a line with a JSON object, (the problem, "") for another one."""
    try:
        # Python's parser has the last word: it takes halves of surrogate pairs, and its errors name the column.
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"is no JSON ({error})", ""
    if not isinstance(value, dict):
        return f"holds a {type(value).__name__}, not a JSON object", ""
    content = value.get(field)
    if not isinstance(content, str):
        keys = ", ".join(list(value)[:8]) or "none"
        return f"has no text under the key {field!r} (keys: {keys})", ""
    try:
        content.encode()
    except UnicodeEncodeError as error:
        # JSON can name half of a surrogate pair, which UTF-8 cannot write.
        return f"has half a character (\\u{ord(content[error.start]):04x} without its other half)", ""
    return "", content


def _groups(chunk: InputChunk, problems: Problems) -> tuple[InputChunk, Iterator[tuple[int, bytes]]]:
    """Return groups of whole documents, each with its offset, and the chunk with the encoding that they are in."""
    start, blocks = chunk_blocks(chunk, problems)
    if UNCUTTABLE.match(chunk.file.encoding):
        blocks = _recoded(chunk, blocks, problems)
        chunk = replace(chunk, file=replace(chunk.file, encoding="utf-8"))
    return chunk, grouped(chunk, start, blocks, problems)


def _recoded(chunk: InputChunk, blocks: Iterator[bytes], problems: Problems) -> Iterator[bytes]:
    """Yield content as UTF-8, block by block, for encodings whose bytes cannot be searched for borders.

    Positions in it are then counted in bytes of UTF-8.
    """
    file = chunk.file
    decoder = codecs.getincrementaldecoder(file.encoding)()
    read = 0
    for block in chain(blocks, (b"",)):
        state = decoder.getstate()
        held = len(state[0])  # the begin of a character that ends in this block
        try:
            text = decoder.decode(block, final=not block and not problems.is_cut)
        except UnicodeDecodeError as error:
            bad = read - held + error.start
            message = f"{file.path}: not {file.encoding} at byte {bad} ({error.reason})"
            problems.require("damaged_files", message, ENCODING_REMEDY)  # the rest may be shifted by a byte
            problems.lost_bytes += max(0, file.bytes - bad)
            decoder.setstate(state)
            yield decoder.decode(block[: max(0, error.start - held)]).encode("utf-8", "surrogatepass")
            return
        read += len(block)
        yield text.encode("utf-8", "surrogatepass")


def chunk_blocks(chunk: InputChunk, problems: Problems) -> tuple[int, Iterator[bytes]]:
    """Return the offset at which the chunk's documents start, and its content in blocks."""
    file = chunk.file
    if file.compression or UNCUTTABLE.match(file.encoding):
        return 0, content_blocks(file, problems, chunk.start, chunk.end)
    with open_stored(file.path) as stream:
        start = _next_document(stream, file, chunk.start, chunk.end)
        # If no document starts in the chunk, the end is not searched: every chunk would read the rest of the file.
        end = start if start == file.bytes else _next_document(stream, file, chunk.end, file.bytes)
    return start, content_blocks(file, problems, start, max(start, end))


def _next_document(stream: BinaryIO, file: InputFile, nominal: int, limit: int) -> int:
    """Return where the first document at or after ``nominal`` starts; the file's size if none is before ``limit``."""
    if nominal == 0 or nominal >= file.bytes:
        return nominal
    # A border may begin before the nominal end of the chunk and end exactly at it.
    begin = max(0, nominal - BORDER_BYTES)
    stream.seek(begin)
    held = b""
    # Blocks end at the same bytes for every chunk, so that the end of one and the start of the next are found alike.
    while begin < limit and (block := stream.read(SCAN_BYTES - (begin + len(held)) % SCAN_BYTES)):
        held += block
        for match in BORDERS[file.format].finditer(held):
            # A match that touches the end of the bytes read so far may be longer in the file.
            is_whole = match.end() < len(held) or begin + len(held) >= file.bytes
            if begin + match.end() >= nominal and is_whole:
                return begin + match.end()
        # A border may also be cut by the end of a block: keep the end of this one.
        kept = min(len(held), BORDER_BYTES)
        begin, held = begin + len(held) - kept, held[-kept:]
    return file.bytes


def grouped(chunk: InputChunk, offset: int, blocks: Iterator[bytes], problems: Problems) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, bytes) of groups of whole documents; the last may lack its border.

    A document above ``MAX_DOCUMENT_BYTES`` is left out, and never held in memory as a whole.
    """
    border = BORDERS[chunk.file.format]
    held, is_skipping = b"", False
    for block in blocks:
        # The held bytes have no border, except that one may begin at their end and continue in the new block.
        searched = max(0, len(held) - BORDER_BYTES)
        held += block
        if is_skipping:
            # Inside a document that is too long: drop everything up to its border.
            first = border.search(held)
            cut = len(held) - min(len(held), BORDER_BYTES) if first is None else first.end()
            offset, held, is_skipping = offset + cut, held[cut:], first is None
            searched = 0
            if is_skipping:
                continue
        # Everything up to the last border is a group of whole documents.
        cut = _last_border(border, held, searched)
        if cut:
            yield offset, held[:cut]
            offset, held = offset + cut, held[cut:]
        if len(held) > MAX_DOCUMENT_BYTES:
            problems.oversized(chunk.file.path, f"at byte {offset}")
            cut = len(held) - BORDER_BYTES
            offset, held, is_skipping = offset + cut, held[cut:], True
    # The rest is the last document. In a cut file it may be half of one; a dump counts it as a cut page.
    if held and not is_skipping and not (problems.is_cut and chunk.file.format != "wikipedia"):
        yield offset, held


def _last_border(border: re.Pattern[bytes], held: bytes, start: int) -> int:
    """Return the end of the last border after ``start``, 0 if there is none; one at the very end may be longer."""
    if border.pattern == b"\n":
        return held.rfind(b"\n", start) + 1
    # A pattern finds the last match by finding all. The last border is nearly always near the end, so look there first.
    for begin in (max(start, len(held) - NEAR_END_BYTES), start):
        end = 0
        for match in border.finditer(held, begin):
            end = match.end()
        if end:
            return end
    return 0


def _decode(chunk: InputChunk, offset: int, data: bytes, problems: Problems) -> Iterator[tuple[int, str]]:
    """Yield (offset, text) of a group, with line feeds as the only line ends.

    Raises:
        DataError: It cannot be decoded, and the build may not lose documents; the message names the first wrong byte.
    """
    file = chunk.file
    is_utf8 = codecs.lookup(file.encoding).name == "utf-8"
    if offset == 0 and data.startswith(codecs.BOM_UTF8) and is_utf8:
        data, offset = data[3:], 3  # a byte order mark is no text
    try:
        text = data.decode(file.encoding) if is_utf8 else _decode_whole(data, file.encoding)
    except UnicodeDecodeError as error:
        # Documents without wrong bytes are kept: the group is decoded again, one document at a time.
        border = BORDERS.get(file.format)
        ends = [] if problems.is_strict or border is None else [match.end() for match in border.finditer(data)]
        cuts = sorted({0, *ends, len(data)})
        if len(cuts) > 2:
            for start, end in pairwise(cuts):
                yield from _decode(chunk, offset + start, data[start:end], problems)
            return
        position = offset + error.start
        line = line_number(chunk, position) if problems.shows("undecodable_documents") else "unknown"
        problems.require(
            "undecodable_documents",
            f"{file.path}: not {file.encoding} at byte {position} (line {line}; bytes "
            f"{data[error.start : error.start + 4].hex(' ')}: {error.reason})",
            ENCODING_REMEDY,
        )
        return
    yield offset, text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _decode_whole(data: bytes, encoding: str) -> str:
    """Return text without half of a surrogate pair, which an escape can name (``unicode_escape``) and UTF-8 not write.

    Raises:
        UnicodeDecodeError: It cannot be decoded, or has such a half.
    """
    text = data.decode(encoding)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        start = max(0, data.lower().find(b"%04x" % ord(text[error.start])) - len(r"\u"))
        raise UnicodeDecodeError(encoding, data, start, start + 1, "half a surrogate pair") from None
    return text


def line_number(chunk: InputChunk, position: int) -> int:
    """Return the line, from 1, of a byte of the content. It reads the file from its start, so only errors do it."""
    lines, read = 1, 0
    file = chunk.file
    blocks = content_blocks(file, Problems(is_strict=False))
    if UNCUTTABLE.match(file.encoding):
        blocks = _recoded(chunk, blocks, Problems(is_strict=False))
    for block in blocks:
        lines += block[: max(0, position - read)].count(b"\n")
        read += len(block)
        if read >= position:
            break
    return lines
