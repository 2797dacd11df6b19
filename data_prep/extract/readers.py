"""Documents of a chunk: strict decoding, then plain text by blank lines or JSON Lines by field."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from data_prep.extract.chunks import Chunk, InputFile, chunk_bounds
from megabert.errors import DataError
from megabert.tokenization import compose

BLANK_LINE = re.compile(r"\n[^\S\n]*\n")


@dataclass(frozen=True)
class Text:
    """Decoded text and where it begins in its file."""

    file: InputFile
    offset: int
    content: str


def read_documents(chunk: Chunk) -> Iterator[list[str]]:
    """Yield the documents of a chunk, each as its non-empty lines (paragraphs), stripped, in Unicode's composed form.

    A document without any text is yielded as an empty list, so that it is counted.

    Raises:
        DataError: Bytes that are not of the encoding, a line that is no JSON object, or a missing field.
    """
    text = _decode(chunk)
    documents = _jsonl_documents(text) if chunk.file.format == "jsonl" else _text_documents(text)
    for document in documents:
        yield [stripped for line in compose(document).splitlines() if (stripped := line.strip())]


def _decode(chunk: Chunk) -> Text:
    path, encoding = chunk.file.path, chunk.file.encoding
    try:
        with open(path, "rb") as stream:
            start, end = chunk_bounds(chunk, stream)
            stream.seek(start)
            data = stream.read(end - start)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}). Check the path and its permissions.") from error
    if start == 0 and data.startswith(b"\xef\xbb\xbf") and encoding.lower().replace("_", "-") in ("utf-8", "utf8"):
        data, start = data[3:], 3  # a byte order mark is no text
    try:
        content = data.decode(encoding)
    except UnicodeDecodeError as error:
        place = start + error.start
        bad = data[error.start : error.start + 4].hex(" ")
        raise DataError(
            f"{path}: not {encoding} at byte {place} (line {_line_number(path, place)}; bytes {bad}: {error.reason}). "
            "Give the file's real encoding, such as --encoding cp1252, or mend or leave out the file."
        ) from None
    return Text(chunk.file, start, content.replace("\r\n", "\n").replace("\r", "\n"))


def _text_documents(text: Text) -> Iterator[str]:
    for document in BLANK_LINE.split(text.content):
        if document.strip():
            yield document


def _jsonl_documents(text: Text) -> Iterator[str]:
    for number, line in enumerate(text.content.split("\n")):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _line_error(text, number, f"is no JSON ({error})") from None
        if not isinstance(value, dict):
            raise _line_error(text, number, f"holds a {type(value).__name__}, not a JSON object")
        content = value.get(text.file.field)
        if not isinstance(content, str):
            keys = ", ".join(list(value)[:8]) or "none"
            raise _line_error(text, number, f"has no text under the key {text.file.field!r} (keys: {keys})")
        try:
            content.encode()
        except UnicodeEncodeError as error:
            escape = f"\\u{ord(content[error.start]):04x}"
            raise _line_error(text, number, f"has half a character ({escape} without its other half)") from None
        yield content


def _line_error(text: Text, number: int, problem: str) -> DataError:
    line = _line_number(text.file.path, text.offset) + number
    return DataError(
        f"{text.file.path}: line {line} {problem}. Mend or remove the line; the key is chosen with --field, "
        "and plain text is read with --format text."
    )


def _line_number(path: str, place: int) -> int:
    """Count lines up to a byte, from 1; only done for a message."""
    with open(path, "rb") as stream:
        return stream.read(place).count(b"\n") + 1
