"""JSON files with checked types.

A file that was cut, edited by hand or written by another program must end in a sentence that names the file, the field
and the remedy. pydantic does the checking, so that a dataclass's annotations are the description of the format.

Some texts carry a SHA-256 of themselves: manifests of checkpoints, and the state, plan and records of a build. A build
or a run that continues trusts these, and a count that was changed would give other shards. So each begins with a hash
of the rest and of a *context*: for a build the step, the input and the configuration that it belongs to. A text that
was edited or damaged, or that another build wrote, does not fit its hash.

The user's text files are opened here as well (`open_text`): errors name the file and the remedy.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from megabert.foundation.errors import DataError, MegabertError
from megabert.foundation.files import atomic_write, open_to_read, read_small


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what can go wrong while a text file is read into errors that name the file.

    Raises:
        DataError: The file cannot be read, or is not UTF-8.
    """
    try:
        yield
    except UnicodeDecodeError as error:
        byte = f"{error.object[error.start]:#04x}"
        raise DataError(f"{path}: is not UTF-8 text ({byte}). Convert it with iconv -t UTF-8.") from None
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{path}: cannot be read ({reason}). Check the path and its permissions.") from error


@contextmanager
def open_text(path: Path, *, newline: str | None = None) -> Iterator[TextIOWrapper]:
    """Open a text file of the user's, in UTF-8, for reading.

    Raises:
        DataError: As `reading`.
    """
    with reading(path), TextIOWrapper(open_to_read(path), encoding="utf-8-sig", newline=newline) as file:
        yield file


Content = TypeVar("Content")
JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
"""Endings of the names of JSON Lines."""
MOST_CHARACTERS = 1 << 26
"""The longest line of JSON Lines."""
MOST_SHOWN = 60
"""Characters of a field's name in an error."""


@cache
def adapter_of(cls: Any) -> TypeAdapter[Any]:
    """Return the checks of a type; making them takes pydantic some time."""
    return TypeAdapter(cls)


def read_json(path: Path, cls: type[Content], *, remedy: str, error: type[MegabertError] = DataError) -> Content:
    """Read a JSON file into a dataclass, or into any other type that pydantic understands.

    Args:
        path: The file.
        cls: Type of the content. Unknown keys are ignored unless the class forbids them in ``__pydantic_config__``.
        remedy: Advice to a user whose file is missing or damaged; a sentence or two.
        error: Class of the error that is raised.

    Raises:
        MegabertError: An ``error`` that names the file, the first field that is wrong, and the remedy.
    """
    try:
        content = read_small(path)
    except OSError as failure:
        raise error(f"{path}: cannot be read ({failure.strerror}). {remedy}") from None
    return parse_json(content, cls, where=str(path), remedy=remedy, error=error)


def parse_json(
    content: bytes | str, cls: type[Content], *, where: str, remedy: str, error: type[MegabertError] = DataError
) -> Content:
    """Parse JSON text as `read_json` does.

    Args:
        content: The text.
        cls: Type of the content.
        where: Where the text comes from, for errors: a file, or a field of one.
        remedy: Advice to a user whose file is damaged.
        error: Class of the error that is raised.

    Raises:
        MegabertError: As in `read_json`.
    """
    try:
        # Strict: a number that is written as a word is damage here, not a value to convert.
        return adapter_of(cls).validate_json(content, strict=True)  # type: ignore[arg-type,no-any-return]
    except ValidationError as failure:
        problem = failure.errors(include_url=False)[0]
        field = ".".join(str(name)[:MOST_SHOWN] for name in problem["loc"])
        what = f"{field}: {problem['msg']}" if field else problem["msg"]
        raise error(f"{where}: damaged or edited ({what}). {remedy}") from None


def parse_values(
    values: Any, cls: type[Content], *, where: str, remedy: str, error: type[MegabertError] = DataError
) -> Content:
    """Check plain values, which came out of JSON, as `parse_json` does: strict types take a list for a tuple there."""
    return parse_json(json.dumps(values), cls, where=where, remedy=remedy, error=error)


def read_json_lines(path: Path, cls: type[Content], *, remedy: str) -> Iterator[tuple[int, Content]]:
    """Yield the number and the content of each line of JSON Lines; blank lines are left out.

    Args:
        path: A UTF-8 file.
        cls: Type of a line's content, as in `read_json`.
        remedy: Advice to a user whose file is of another form.

    Raises:
        DataError: The file is missing, no regular file, not UTF-8, or a line is of another form.
    """
    with open_text(path, newline="\n") as file:
        number = 0
        while line := file.readline(MOST_CHARACTERS):
            number += 1
            where = f"{path}:{number}"
            if len(line) == MOST_CHARACTERS:
                raise DataError(f"{where}: has {MOST_CHARACTERS:,} characters or more. Cut the text into documents.")
            if line.strip():
                yield number, parse_json(line, cls, where=where, remedy=remedy)


def write_json(path: Path, value: Any, *, indent: int = 2, **options: Any) -> None:
    """Write plain values as indented JSON, whole or not at all."""
    atomic_write(path, json.dumps(value, indent=indent, **options) + "\n")


def dumped(value: Any) -> str:
    """Return plain values as indented JSON; a number that is not finite, which JSON does not know, becomes null."""
    plain = json.loads(json.dumps(value), parse_constant=lambda name: None)
    return json.dumps(plain, indent=2, allow_nan=False)


def to_json(value: Any) -> Any:
    """Return a dataclass (or any other value) as plain JSON values, as `read_json` reads them back."""
    return adapter_of(type(value)).dump_python(value, mode="json")  # type: ignore[arg-type]


_BEGIN, _END = b'{"sha256": "', b'", '
START = len(_BEGIN) + 64 + len(_END)
"""Where the content of a sealed text begins; the brace before its first key is at the very start."""


def seal(content: dict[str, Any], context: str, *, indent: int | None = None) -> bytes:
    """Return JSON text whose first key is a hash of all others and of the context."""
    rest = json.dumps(content, indent=indent).encode()[1:]
    return _BEGIN + _digest(rest, context) + _END + rest


def unseal(
    text: bytes, cls: type[Content], context: str, *, where: str, remedy: str, error: type[MegabertError] = DataError
) -> Content:
    """Return the content, its types checked as `megabert.foundation.json_files.read_json` does.

    Raises:
        MegabertError: An ``error``: the hash does not fit, or the content is of another type.
    """
    rest = text.rstrip(b"\n")[START:]
    if text[:START] != _BEGIN + _digest(rest, context) + _END:
        raise error(f"{where}: damaged or edited (its SHA-256 does not fit). {remedy}")
    return parse_json(b"{" + rest, cls, where=where, remedy=remedy, error=error)


def _digest(rest: bytes, context: str) -> bytes:
    return hashlib.sha256(context.encode() + b"\0" + rest).hexdigest().encode()
