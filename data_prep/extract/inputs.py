"""Which files a build reads, and what it has to know of each."""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from data_prep.config import SourceConfig
from data_prep.extract.opening import COMPRESSIONS, file_size, find_paths
from megabert.errors import DataError

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
    """Path as it was found; perhaps a URL."""
    bytes: int
    """Size as stored."""
    source: int
    """Index of its source."""
    format: str
    """``text``, ``book``, ``jsonl``, ``parquet``, ``arrow`` or ``wikipedia``."""
    encoding: str
    """Encoding of its text."""
    field: str
    """JSON Lines, Parquet, Arrow: the key or column that holds the text."""
    compression: str = ""
    """``gz``, ``bz2``, ``zst``, ``xz`` or nothing."""


@dataclass(frozen=True)
class InputChunk:
    """A part of an input file that one unit of work reads: whole documents, of bounded size where the format allows.

    What ``start`` and ``end`` count depends on the format: bytes as stored (documents that start there belong to the
    chunk), row groups of Parquet, record batches of Arrow, or compressed bytes from one member's start to another's.
    """

    file: InputFile
    start: int
    end: int
    bytes: int
    """Size as stored, for progress."""


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
    files = []
    for path in paths:
        name, compression = _format_of(path, source)
        files.append(InputFile(path, file_size(path), index, name, source.encoding, source.field, compression))
    return files


def _format_of(path: str, source: SourceConfig) -> tuple[str, str]:
    """Return format and compression, from the name where they are not given."""
    name = PurePosixPath(path)
    compression = COMPRESSIONS.get(name.suffix.lower(), "")
    if compression:
        name = name.with_suffix("")
    if source.format != "auto":
        return source.format, compression
    # A dump is named such as enwiki-20260101-pages-articles1.xml-p1p41242.
    is_dump = re.search(r"pages-articles.*\.xml", name.name)
    file_format = "wikipedia" if is_dump else FORMATS.get(name.suffix.lower())
    if file_format is None:
        raise DataError(f"{path}: cannot tell the format from the name. Say --format, such as --format text.")
    if file_format in ("parquet", "arrow"):  # which compress their columns themselves
        compression = ""
    return file_format, compression
