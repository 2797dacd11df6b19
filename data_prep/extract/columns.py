"""Documents in a column of a Parquet or Arrow file, which is cut into chunks at row groups or record batches."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.execution.records import MAX_DOCUMENT_BYTES, Problems
from data_prep.extract.opening import InputChunk, InputFile, is_url, open_stored
from megabert.foundation.errors import DataError
from megabert.foundation.files import check_regular

ROWS_PER_BATCH = 64
"""Rows of Parquet that are decoded at once. A text that repeats is stored once, so few bytes may become many rows."""


_TEXTS = (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view())


def part_sizes(file: InputFile) -> list[int]:
    """Return the bytes of each row group or record batch. An Arrow stream, which has no index, is one part.

    Raises:
        DataError: The file is missing or damaged.
    """
    with source_of(file) as source:
        if file.format == "parquet":
            metadata = pq.ParquetFile(source).metadata
            return [metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups)]
        try:
            batches = pa.ipc.open_file(source).num_record_batches
        except pa.ArrowInvalid:
            return [file.bytes]
        return [max(1, file.bytes // batches)] * batches if batches else []


def column_documents(chunk: InputChunk, problems: Problems) -> Iterator[tuple[int, str]]:
    """Yield (row within the chunk, text); a null is an empty document.

    Args:
        chunk: Some row groups or record batches of a file.
        problems: Counts texts that are too long.

    Raises:
        DataError: The file is damaged, or has no such column of strings.
    """
    row = 0
    with source_of(chunk.file) as source:
        for batch in column_batches(chunk.file, source, chunk.start, chunk.end, problems, [chunk.file.field]):
            column = _checked_text(chunk.file, batch.column(0))
            # One text after the other becomes a Python string: a table may repeat a long one in every row.
            for cell in column:
                buffer = _stored_value(cell).as_buffer()
                if buffer is not None and buffer.size > MAX_DOCUMENT_BYTES:
                    problems.oversized(chunk.file.path, f"in row {row} of part {chunk.start}")
                else:
                    yield row, _text(chunk, row, buffer)
                row += 1


def _stored_value(cell: pa.Scalar) -> pa.Scalar:
    """Return the value of a row that a dictionary or a run holds."""
    while isinstance(cell, pa.DictionaryScalar | pa.RunEndEncodedScalar):
        cell = cell.value
    return cell


def _text(chunk: InputChunk, row: int, buffer: pa.Buffer | None) -> str:
    try:
        return str(buffer, "utf-8") if buffer is not None else ""
    except UnicodeDecodeError as error:  # only binary columns: strings were checked
        raise DataError(
            f"{chunk.file.path}: row {row} of part {chunk.start} of the column {chunk.file.field!r} holds binary data "
            f"that are no UTF-8 ({error.reason}). Choose a column of text with --field."
        ) from error


@contextmanager
def source_of(file: InputFile) -> Iterator[Any]:
    """Hold a local file, mapped, or a remote one, opened; whatever is wrong in it is an error that names it."""
    try:
        if not is_url(file.path):
            check_regular(file.path)
        with (
            pa.PythonFile(open_stored(file.path), mode="r") if is_url(file.path) else pa.memory_map(file.path) as source
        ):
            yield source
    except (pa.ArrowException, OSError, SystemError, ValueError, OverflowError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(
            f"{file.path}: cannot be read as {file.format} ({reason}). Copy the file again, or leave it out."
        ) from error


def _checked_text(file: InputFile, column: pa.Array) -> pa.Array:
    """Return a column that is fully checked to hold text."""
    if not _holds_text(column.type):
        raise DataError(
            f"{file.path}: the column {file.field!r} holds {column.type}, not text. Choose another one with --field."
        )
    # Arrow believes the offsets that a file holds, and would follow them out of it.
    column.validate(full=True)
    return column


def _holds_text(kind: pa.DataType) -> bool:
    """Return whether a column is of strings, or of bytes that may be, in any of Arrow's layouts."""
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _holds_text(kind.value_type)
    return kind in _TEXTS


def column_batches(
    file: InputFile, source: Any, start: int, end: int, problems: Problems, fields: list[str]
) -> Iterable[pa.RecordBatch]:
    """Yield some columns of a part of a file, batch by batch, not checked.

    Args:
        file: The file.
        source: Its `source_of`.
        start: First row group or record batch.
        end: The one after the last.
        problems: Counts row groups that are too large to be read.
        fields: The columns.
    """
    if file.format == "parquet":
        return _row_groups(file, source, start, end, problems, fields)
    return _record_batches(file, source, start, end, fields)


def _row_groups(
    file: InputFile, source: Any, start: int, end: int, problems: Problems, fields: list[str]
) -> Iterator[pa.RecordBatch]:
    table = pq.ParquetFile(source)
    names = table.schema_arrow.names
    _require_fields(file, names, fields)
    for number in range(start, end):
        group = table.metadata.row_group(number)
        columns = map(group.column, range(group.num_columns))
        # A list column's path goes on: ids.list.element.
        paths = tuple(f"{field}." for field in fields)
        size = sum(one.total_uncompressed_size for one in columns if f"{one.path_in_schema}.".startswith(paths))
        # A page is decompressed as a whole, so cells that are known to be too long have to be left out unread.
        if size > MAX_DOCUMENT_BYTES * max(1, group.num_rows):
            problems.oversized(file.path, f"in row group {number} ({group.num_rows} rows, {size >> 20} MiB of text)")
        else:
            yield from table.iter_batches(ROWS_PER_BATCH, row_groups=[number], columns=fields, use_threads=False)


def _record_batches(file: InputFile, source: Any, start: int, end: int, fields: list[str]) -> Iterable[pa.RecordBatch]:
    try:
        names = pa.ipc.open_file(source).schema.names
        is_stream = False
    except pa.ArrowInvalid:  # a stream has no footer, by which a file is recognized
        source.seek(0)
        names, is_stream = pa.ipc.open_stream(source).schema.names, True
    _require_fields(file, names, fields)
    # The other columns are not read: they may be large.
    options = pa.ipc.IpcReadOptions(included_fields=sorted(map(names.index, fields)), use_threads=False)
    source.seek(0)
    if is_stream:
        return pa.ipc.open_stream(source, options=options)
    return map(pa.ipc.open_file(source, options=options).get_batch, range(start, end))


def _require_fields(file: InputFile, names: list[str], fields: list[str]) -> None:
    for field in fields:
        if field not in names:
            shown = ", ".join(names[:8]) or "none"
            raise DataError(f"{file.path}: has no column {field!r} (columns: {shown}). Choose one with --field.")
        if names.count(field) > 1:
            raise DataError(f"{file.path}: has two columns {field!r}. Rename one, and choose with --field.")
