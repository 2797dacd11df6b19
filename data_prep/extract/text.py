"""Documents of text files: groups of whole documents are cut out of the bytes, decoded strictly, and parted."""

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from data_prep.extract.chunks import BORDERS, UNCUTTABLE, chunk_bounds
from data_prep.extract.inputs import InputChunk
from data_prep.extract.opening import content_blocks, open_stored
from data_prep.extract.problems import Problems

MAX_DOCUMENT_BYTES = 32 << 20
"""Longer documents are left out and counted: they would take a worker's memory."""
BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Group = tuple[int, bytes]
"""Where it begins in the file's content, and bytes that end at a border of documents."""
Document = tuple[int, str]
"""Where it begins (byte, line or row), and its text."""


def text_documents(chunk: InputChunk, problems: Problems) -> Iterator[Document]:
    """Yield documents that blank lines part."""
    for offset, text in decoded_groups(chunk, problems):
        start = 0
        for end, following in [*(match.span() for match in BLANK_LINE.finditer(text)), (len(text), len(text))]:
            document = text[start:end]
            if document.strip():
                yield offset, document
            offset += _bytes(document) + following - end
            start = following


def book_documents(chunk: InputChunk, problems: Problems) -> Iterator[Document]:
    """Yield the whole file as one document: blank lines part paragraphs, lines of one are joined."""
    blocks: list[bytes] = []
    size = 0
    for block in content_blocks(chunk.file.path, chunk.file.compression, 0, chunk.file.bytes, problems):
        size += len(block)
        if size > MAX_DOCUMENT_BYTES:
            problems.add("oversized_documents", f"{chunk.file.path}: above {MAX_DOCUMENT_BYTES >> 20} MiB")
            return
        blocks.append(block)
    data = b"".join(blocks)
    if problems.is_cut:  # up to the last line, so that no character is half of one
        data = data[: data.rfind(b"\n") + 1]
    for _, text in _decode(chunk, 0, data, problems):
        yield 0, "\n".join(" ".join(part.split("\n")) for part in BLANK_LINE.split(text))


def jsonl_documents(chunk: InputChunk, problems: Problems) -> Iterator[Document]:
    """Yield the text of each line's object."""
    for offset, text in decoded_groups(chunk, problems):
        following = offset
        lines = text.removesuffix("\n").split("\n")
        for number, line in enumerate(lines):
            place = following
            if number + 1 < len(lines):
                following += _bytes(line) + 1
            if not line or line.isspace():
                continue
            problem, content = _text_of(line, chunk.file.field)
            if problem:
                line_number = _line_number(chunk, offset) + number
                remedy = "Mend or remove the line; the key is chosen with --field, and --format text reads plain text."
                problems.require("bad_lines", f"{chunk.file.path}: line {line_number} {problem}", remedy)
            else:
                yield place, content


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _text_of(line: str, field: str) -> tuple[str, str]:
    """Return (what is wrong, the text)."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"is no JSON ({error})", ""
    if not isinstance(value, dict):
        return f"holds a {type(value).__name__}, not a JSON object", ""
    content = value.get(field)
    if not isinstance(content, str):
        keys = ", ".join(list(value)[:8]) or "none"
        return f"has no text under the key {field!r} (keys: {keys})", ""
    if content.isascii():
        return "", content
    try:
        content.encode()
    except UnicodeEncodeError as error:
        return f"has half a character (\\u{ord(content[error.start]):04x} without its other half)", ""
    return "", content


def decoded_groups(chunk: InputChunk, problems: Problems) -> Iterator[tuple[int, str]]:
    """Yield (offset, text) of groups of whole documents, line ends unified."""
    start, blocks = chunk_blocks(chunk, problems)
    if UNCUTTABLE.match(chunk.file.encoding):
        blocks = _recoded(chunk, blocks, problems)
        chunk = replace(chunk, file=replace(chunk.file, encoding="utf-8"))
    for offset, data in grouped(chunk, start, blocks, problems):
        yield from _decode(chunk, offset, data, problems)


def _recoded(chunk: InputChunk, blocks: Iterator[bytes], problems: Problems) -> Iterator[bytes]:
    """Yield content as UTF-8, block by block; places in it are then counted in bytes of UTF-8."""
    file = chunk.file
    decoder = codecs.getincrementaldecoder(file.encoding)()
    read = 0
    for block in chain(blocks, (b"",)):
        held = len(decoder.getstate()[0])  # of a character that goes on
        try:
            text = decoder.decode(block, final=not block and not problems.is_cut)
        except UnicodeDecodeError as error:
            problems.require(
                "undecodable_documents",
                f"{file.path}: not {file.encoding} at byte {read - held + error.start} ({error.reason})",
                "Give the file's real encoding, such as --encoding cp1252, or mend or leave out the file.",
            )
            return
        read += len(block)
        yield text.encode("utf-8", "surrogatepass")


def chunk_blocks(chunk: InputChunk, problems: Problems) -> tuple[int, Iterator[bytes]]:
    """Return the offset at which the chunk's documents start, and its content in blocks."""
    file = chunk.file
    if file.compression or UNCUTTABLE.match(file.encoding):
        return 0, content_blocks(file.path, file.compression, chunk.start, chunk.end, problems)
    with open_stored(file.path) as stream:
        start, end = chunk_bounds(chunk, stream)
    return start, content_blocks(file.path, "", start, end, problems)


def grouped(chunk: InputChunk, offset: int, blocks: Iterator[bytes], problems: Problems) -> Iterator[Group]:
    """Cut content into groups of whole documents; the last may lack its border.

    A document above ``MAX_DOCUMENT_BYTES`` is left out without being held.
    """
    border = BORDERS[chunk.file.format]
    held, is_skipping = b"", False
    for block in blocks:
        searched = max(0, len(held) - 64)
        held += block
        if is_skipping:
            first = border.search(held)
            cut = len(held) - min(len(held), 64) if first is None else first.end()
            offset, held, is_skipping = offset + cut, held[cut:], first is None
            searched = 0
            if is_skipping:
                continue
        cut = _last_border(border, held, searched)
        if cut:
            yield offset, held[:cut]
            offset, held = offset + cut, held[cut:]
        if len(held) > MAX_DOCUMENT_BYTES:
            size = f"above {MAX_DOCUMENT_BYTES >> 20} MiB"
            problems.add("oversized_documents", f"{chunk.file.path}: the document at byte {offset} is {size}")
            offset, held, is_skipping = offset + len(held) - 64, held[-64:], True
    if held and not is_skipping and not (problems.is_cut and chunk.file.format != "wikipedia"):
        yield offset, held  # of a cut file the last document may be half of one; a dump counts it as a cut page


def _last_border(border: re.Pattern[bytes], held: bytes, start: int) -> int:
    """Return the end of the last border behind ``start``, 0 if there is none; a border at the very end may go on."""
    if border.pattern == b"\n":
        return held.rfind(b"\n", start) + 1
    # Cheap first: the last border is nearly always near the end.
    for begin in (max(start, len(held) - 4096), start):
        end = 0
        for match in border.finditer(held, begin):
            end = match.end()
        if end:
            return end
    return 0


def _decode(chunk: InputChunk, offset: int, data: bytes, problems: Problems) -> Iterator[tuple[int, str]]:
    file = chunk.file
    if (
        offset == 0
        and data.startswith(BYTE_ORDER_MARK)
        and file.encoding.lower().replace("_", "-") in ("utf-8", "utf8")
    ):
        data, offset = data[3:], 3  # a byte order mark is no text
    try:
        # One wide character makes a whole string wide, so lines that stand alone are decoded alone.
        is_by_line = file.format == "jsonl" and b"\r" not in data
        parts = data.removesuffix(b"\n").split(b"\n") if is_by_line else [data]
        texts = [_unix_lines(part.decode(file.encoding)) for part in parts]
    except UnicodeDecodeError:
        yield from _decode_what_can_be(chunk, offset, data, problems)
        return
    for part, text in zip(parts, texts, strict=True):
        yield offset, text
        offset += len(part) + is_by_line


def _decode_what_can_be(chunk: InputChunk, offset: int, data: bytes, problems: Problems) -> Iterator[tuple[int, str]]:
    """Raise an error with the place of the first wrong byte, or leave out the documents that have some."""
    file = chunk.file
    try:
        data.decode(file.encoding)
    except UnicodeDecodeError as error:
        if not problems.is_strict and file.format in BORDERS:
            yield from _decode_each(chunk, offset, data, problems)
            return
        place = offset + error.start
        problems.require(
            "undecodable_documents",
            f"{file.path}: not {file.encoding} at byte {place} (line {_line_number(chunk, place)}; bytes "
            f"{data[error.start : error.start + 4].hex(' ')}: {error.reason})",
            "Give the file's real encoding, such as --encoding cp1252, or mend or leave out the file.",
        )


def _decode_each(chunk: InputChunk, offset: int, data: bytes, problems: Problems) -> Iterator[tuple[int, str]]:
    """Decode a group document by document, and leave out those with wrong bytes."""
    border, file = BORDERS[chunk.file.format], chunk.file
    ends = [match.end() for match in border.finditer(data)]
    start = 0
    for end in [*ends, len(data)]:
        try:
            yield offset + start, _unix_lines(data[start:end].decode(file.encoding))
        except UnicodeDecodeError as error:
            place = f"{file.path}: not {file.encoding} at byte {offset + start + error.start}"
            problems.add("undecodable_documents", f"{place} ({error.reason})")
        start = end


def _unix_lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _line_number(chunk: InputChunk, place: int) -> int:
    """Count lines up to a byte of the content, from 1; only done for a message."""
    lines, read = 1, 0
    file = chunk.file
    blocks = content_blocks(file.path, file.compression, 0, file.bytes, Problems())
    if UNCUTTABLE.match(file.encoding):
        blocks = _recoded(chunk, blocks, Problems(is_strict=False))
    for block in blocks:
        lines += block[: max(0, place - read)].count(b"\n")
        read += len(block)
        if read >= place:
            break
    return lines
