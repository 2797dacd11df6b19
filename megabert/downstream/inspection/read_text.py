"""Text files as sequences of a model's length: plain text and JSON Lines, a part at a time.

A document of plain text ends with a blank line, one of JSON Lines with its object. Its pieces are cut into sequences
``[CLS] ... [SEP]`` that are full but the last one.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megabert.foundation.errors import DataError
from megabert.foundation.json_files import JSON_SUFFIXES, read_json_lines
from megabert.foundation.text_files import open_text
from megabert.tokens.tokenization import Tokenizer

PART_CHARACTERS = 1 << 20
"""A line of plain text is tokenized in parts of this size, so that memory has a bound."""
_PARTS = 256
"""Parts that are tokenized at once."""


TextPart = tuple[str, bool]
"""A line or a part of one, or an empty text, and whether it ends a document."""


def read_parts(path: Path, column: str = "text") -> Iterator[TextPart]:
    """Yield the text of a file in its order.

    Args:
        path: A UTF-8 file; JSON Lines by its suffix, else plain text.
        column: The field of a JSON object that holds the text.

    Raises:
        DataError: The file is missing, no regular file, not UTF-8, or a line is no JSON object with text.
    """
    if path.suffix in JSON_SUFFIXES:
        yield from ((text, True) for _, text in _json_texts(path, column))
        return
    number, is_start = 1, True
    with open_text(path, newline="\n") as file:
        while line := file.readline(PART_CHARACTERS):
            if "\0" in line:
                raise DataError(f"{path}:{number}: holds a NUL character, as binary files do. Give a file of text.")
            yield line.strip(), is_start and not line.strip()
            is_start = line.endswith("\n")
            number += is_start
    yield "", True


def read_texts(path: Path, column: str = "text") -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line of a file, or of each JSON object; blank ones are left out.

    Args:
        path: As for `read_parts`.
        column: As for `read_parts`.

    Raises:
        DataError: As for `read_parts`, or a line of plain text has `PART_CHARACTERS` or more.
    """
    if path.suffix in JSON_SUFFIXES:
        rows = _json_texts(path, column)
    else:
        rows = ((number, text) for number, (text, _) in enumerate(read_parts(path), start=1))
    for number, text in rows:
        if len(text) >= PART_CHARACTERS:
            raise DataError(f"{path}:{number}: has {PART_CHARACTERS:,} characters or more. Cut it into sentences.")
        if text.strip():
            yield number, text.strip()


def _json_texts(path: Path, column: str) -> Iterator[tuple[int, str]]:
    for number, row in read_json_lines(path, dict[str, Any], remedy="A JSON object is expected on every line."):
        if not isinstance(row.get(column), str):
            shown = ", ".join(map(repr, row))
            remedy = "Name it: --text-column."
            raise DataError(f"{path}:{number}: no text under {column!r}; there are {shown:.200}. {remedy}")
        yield number, row[column]


def sequences_of(tokenizer: Tokenizer, parts: Iterator[TextPart], length: int) -> Iterator[NDArray[np.int32]]:
    """Cut documents into sequences.

    Args:
        tokenizer: The model's tokenizer.
        parts: What `read_parts` yields.
        length: Most tokens of a sequence, [CLS] and [SEP] included.
    """
    room, pending, is_start = length - 2, np.empty(0, np.int32), True
    while block := list(islice(parts, _PARTS)):
        # Inside a document a line follows a space, which is part of the pieces of some tokenizers.
        texts = []
        for text, ends_document in block:
            texts.append(text if is_start or not tokenizer.kind.keeps_spaces or not text else f" {text}")
            is_start = ends_document
        for (_, ends_document), ids in zip(block, tokenizer.encode_batch(texts), strict=True):
            pending = np.concatenate([pending, ids.astype(np.int32)])
            while len(pending) >= room:
                yield tokenizer.join(pending[:room])[0]
                pending = pending[room:]
            if ends_document and len(pending):
                yield tokenizer.join(pending)[0]
                pending = pending[:0]
