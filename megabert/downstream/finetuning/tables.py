"""Tables with named columns: TSV, CSV, JSON Lines or an array, Parquet. Every row remembers the line it came from."""

import csv
import math
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from megabert.downstream.finetuning.tasks import Task
from megabert.foundation.errors import DataError
from megabert.foundation.files import open_to_read
from megabert.foundation.json_files import open_text, parse_json, read_json_lines, reading
from megabert.observability.logs import logger

ID_COLUMNS = ("id", "guid", "pairID", "index", "idx")
"""Columns that name a row in published sets; the first that a file has is taken, predictions repeat it."""


ANY_TASK = Task("", "")
"""A task whose tables have a header line and rows of one width."""
MAX_CHARACTERS = 1 << 20
"""Characters of a value at most: more than any model reads, and its tokens would take hundreds of times as much."""


class Row(NamedTuple):
    """The columns of a row that were asked for."""

    where: str
    """Where the row is, as ``file:line`` from 1; Parquet has the number of the row instead."""
    line: int
    """The number in ``where``."""
    values: dict[str, Any]
    """Values by column: text as it is written, or from JSON and Parquet whatever the file holds."""

    def origin(self) -> dict[str, Any]:
        """Return where an example comes from, as its first fields, and the row's id if it has a plain one."""
        ids = [self.values[name] for name in ID_COLUMNS if name in self.values]
        plain = [str(value) for value in ids if isinstance(value, str | int) and str(value).strip()]
        return {"where": self.where, "line": self.line, "identity": plain[0] if plain else None}

    def text(self, name: str) -> str:
        """Return a value as text; booleans and whole numbers as JSON and GLUE write them.

        Raises:
            DataError: There is no value, or it is a list or the like.
        """
        return as_text(self.values[name], f"{self.where}: column {name!r}")

    def label(self, name: str) -> str:
        """Return a value as text without spaces around it, which must not be empty.

        Raises:
            DataError: There is no value, or it is a list or the like.
        """
        return as_text(self.text(name).strip() or None, f"{self.where}: column {name!r}")


def as_text(value: Any, where: str) -> str:
    """Return a value of a table as text.

    Raises:
        DataError: There is no value, or it is a list or the like.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):  # NaN is how pandas writes "no value"
        raise DataError(f"{where} is empty. Give it a value, or leave the row out.")
    if isinstance(value, list | dict | bytes):
        raise DataError(f"{where} holds a {type(value).__name__}, not text or a number: {value!r:.40}. Convert it.")
    if isinstance(value, str) and len(value) > MAX_CHARACTERS:
        shown = f"{len(value):,} characters; at most {MAX_CHARACTERS:,} are read"
        raise DataError(f"{where} holds {shown}. Cut the text, or leave the row out.")
    if isinstance(value, str) and "\0" in value:
        raise DataError(f"{where} holds a NUL character, as damaged or binary files do. Fix the row, or leave it out.")
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def read_table(path: Path, names: Sequence[str], task: Task = ANY_TASK) -> list[Row]:
    """Read some columns of a table.

    Args:
        path: The file; its suffix tells the format. TSV has no quotes, as in GLUE.
        names: Names of the columns to keep.
        task: Says how TSV and CSV are written: ``header``, ``skips_broken_rows``, ``spare_columns``.

    Raises:
        DataError: The file is missing, lacks a column, has a broken row, or is not UTF-8.
    """
    reader = READERS.get(path.suffix)
    if reader is None:
        raise DataError(f"{path}: unknown kind of table; known are {', '.join(READERS)}. Rename or convert it.")
    rows = _of_one_width(reader(path, task.header), task.spare_columns)
    return _pick(path, rows, names, task.skips_broken_rows)


def _of_one_width(rows: Iterator[tuple[int, Any]], spare: int) -> Iterator[tuple[int, Any]]:
    """Give rows with up to ``spare`` columns more or fewer than the first its number; the last column stays."""
    width = 0
    for line, row in rows:
        width = width or len(row)
        if isinstance(row, list) and 0 < abs(len(row) - width) <= spare:
            row = [*row[:-1], *[""] * spare][: width - 1] + row[-1:]
        yield line, row


def _pick(path: Path, rows: Iterator[tuple[int, Any]], names: Sequence[str], skips_broken: bool) -> list[Row]:
    """Pick columns out of rows: mappings, or a list of names (the header) followed by lists of values."""
    picked: list[Row] = []
    header: list[str] | None = None
    broken = 0
    # Rows of JSON Lines name their columns. In other formats the first row is the header, and all rows are as long.
    for line, row in rows:
        if isinstance(row, dict):
            _check_columns(f"{path}:{line}", row, names)
        elif header is None:
            header = row
            _check_columns(str(path), header, names)
            continue
        elif len(row) != len(header):
            if not skips_broken:
                raise DataError(
                    f"{path}:{line}: {len(row)} columns, the header has {len(header)}. Fix the row: TSV has no quotes, "
                    "CSV needs them around commas."
                )
            broken += 1
            continue
        else:
            row = dict(zip(header, row, strict=True))
        picked.append(Row(f"{path}:{line}", line, {name: row[name] for name in (*names, *ID_COLUMNS) if name in row}))
    if broken:
        logger.warning("%s: %d rows with a wrong number of columns were left out", path, broken)
    return picked


def _check_columns(where: str, columns: Collection[str], names: Sequence[str]) -> None:
    missing = [name for name in names if name not in columns]
    if missing:
        shown = ", ".join(repr(name) for name in columns)
        raise DataError(
            f"{where}: no column {', '.join(map(repr, missing))}; there are {shown}. Name the columns: "
            "--text-column, --pair-column, --label-column."
        )
    twice = [name for name in names if list(columns).count(name) > 1]
    if twice:
        raise DataError(f"{where}: column {twice[0]!r} is there twice. Rename one, or leave it out.")


def _read_separated(path: Path, header: Sequence[str] | None) -> Iterator[tuple[int, list[str]]]:
    if header is not None:
        yield 0, list(header)
    with open_text(path, newline="") as file:
        if path.suffix == ".csv":
            csv.field_size_limit(MAX_CHARACTERS)  # the default of 131,072 is too low for a long text
            reader = csv.reader(file, strict=True)
            try:
                yield from ((reader.line_num, row) for row in reader if row)
            except csv.Error as error:
                raise DataError(f"{path}:{reader.line_num}: is not CSV: {error}. Fix the line.") from None
            return
        # Split at newlines alone: iterating over a file would also end a line at a lone carriage return.
        for number, line in enumerate(file.read().split("\n"), 1):
            if line.strip("\r"):
                yield number, line.rstrip("\r").split("\t")


def _read_json(path: Path, header: Sequence[str] | None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of JSON Lines, or of a .json's one array with the number of each in place of a line."""
    with open_text(path) as file:
        if path.suffix == ".json" and file.read(1 << 12).lstrip().startswith("["):
            file.seek(0)
            remedy = "An array of JSON objects is expected."
            rows = parse_json(file.read(), list[dict[str, Any]], where=str(path), remedy=remedy)
            yield from ((number, _flat(row)) for number, row in enumerate(rows, 1))
            return
    for number, row in read_json_lines(path, dict[str, Any], remedy="A JSON object is expected on every line."):
        yield number, _flat(row)


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with the fields of its objects as columns of their own: ``labels.score``."""
    objects = {name: value for name, value in row.items() if isinstance(value, dict)}
    return {**row, **{f"{name}.{key}": inner for name, value in objects.items() for key, inner in value.items()}}


def _read_parquet(path: Path, header: Sequence[str] | None) -> Iterator[tuple[int, list[Any]]]:
    try:
        with reading(path), open_to_read(path) as stored, pq.ParquetFile(stored) as file:
            yield 0, file.schema_arrow.names
            row = 0
            for batch in file.iter_batches():
                batch.validate(full=True)  # a damaged file may point outside of its memory
                for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    row += 1
                    yield row, list(values)
    except (pa.ArrowException, OverflowError) as error:
        raise DataError(f"{path}: is damaged or not Parquet: {error}. Name another file.") from None


READERS = {
    **dict.fromkeys((".tsv", ".csv"), _read_separated),
    **dict.fromkeys((".jsonl", ".json"), _read_json),
    ".parquet": _read_parquet,
    ".txt": _read_separated,
}
"""Readers by suffix, in the order in which a folder is searched for tables."""
