"""Opens the user's text files; what goes wrong while they are read names the file and the remedy."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path

from megabert.foundation.errors import DataError
from megabert.foundation.files import open_to_read


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
