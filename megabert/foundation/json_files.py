"""JSON files with checked types.

A file that was cut, edited by hand or written by another program must end in a sentence that names the file, the field
and the remedy. pydantic does the checking, so that a dataclass's annotations are the description of the format.
"""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from megabert.foundation.errors import DataError, MegabertError
from megabert.foundation.files import read_small
from megabert.foundation.text_files import open_text

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


def dumped(value: Any) -> str:
    """Return plain values as indented JSON; a number that is not finite, which JSON does not know, becomes null."""
    plain = json.loads(json.dumps(value), parse_constant=lambda name: None)
    return json.dumps(plain, indent=2, allow_nan=False)


def to_json(value: Any) -> Any:
    """Return a dataclass (or any other value) as plain JSON values, as `read_json` reads them back."""
    return adapter_of(type(value)).dump_python(value, mode="json")  # type: ignore[arg-type]
