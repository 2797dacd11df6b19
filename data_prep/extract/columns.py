"""Documents in a column of a Parquet or Arrow file, which is cut into chunks at row groups or record batches."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.extract.inputs import InputChunk, InputFile
from data_prep.extract.opening import is_url, open_stored
from data_prep.extract.problems import Problems
from megabert.errors import DataError

ROWS_A_BATCH = 1024


def part_sizes(file: InputFile) -> list[int]:
    """Return the bytes of each row group or record batch. An Arrow stream, which has no index, is one part.

    Raises:
        DataError: The file is missing or damaged.
    """
    source = _source(file)
    try:
        if file.format == "parquet":
            metadata = pq.ParquetFile(source).metadata
            return [metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups)]
        try:
            batches = pa.ipc.open_file(source).num_record_batches
        except pa.ArrowInvalid:
            return [file.bytes]
        return [max(1, file.bytes // batches)] * batches if batches else []
    except (pa.ArrowException, OSError) as error:
        raise _damaged(file, error) from error
    finally:
        source.close()


def column_documents(chunk: InputChunk, problems: Problems) -> Iterator[tuple[int, str]]:
    """Yield (row within the chunk, text); a null is an empty document.

    Args:
        chunk: Some row groups or record batches of a file.
        problems: Unused: a column is typed, so its texts are readable or the whole file is damaged.

    Raises:
        DataError: The file is damaged, or has no such column of strings.
    """
    file = chunk.file
    source = _source(file)
    row = 0
    try:
        for column in _columns(file, source, chunk.start, chunk.end):
            if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
                raise DataError(
                    f"{file.path}: the column {file.field!r} holds {column.type}, not text. Choose another one with "
                    "--field."
                )
            for text in column.to_pylist():
                yield row, text or ""
                row += 1
    except (pa.ArrowException, OSError) as error:
        raise _damaged(file, error) from error
    finally:
        source.close()


def _source(file: InputFile) -> Any:
    """Return a local file, mapped, or a remote one, opened."""
    return pa.PythonFile(open_stored(file.path), mode="r") if is_url(file.path) else pa.memory_map(file.path)


def _columns(file: InputFile, source: Any, start: int, end: int) -> Iterator[pa.Array]:
    """Yield the column that holds the text, in arrays of bounded length."""
    if file.format == "parquet":
        table = pq.ParquetFile(source)
        _require_field(file, table.schema_arrow.names)
        groups = list(range(start, end))
        for batch in table.iter_batches(ROWS_A_BATCH, row_groups=groups, columns=[file.field], use_threads=False):
            yield _plain(batch[file.field])
        return
    try:
        reader = pa.ipc.open_file(source)
    except pa.ArrowInvalid:
        source.seek(0)
        stream = pa.ipc.open_stream(source)
        _require_field(file, stream.schema.names)
        for batch in stream:
            yield _plain(batch[file.field])
        return
    _require_field(file, reader.schema.names)
    for index in range(start, end):
        batch = reader.get_batch(index)
        for first in range(0, batch.num_rows, ROWS_A_BATCH):
            yield _plain(batch[file.field].slice(first, ROWS_A_BATCH))


def _plain(column: pa.Array) -> pa.Array:
    """Return the values of a column that may be stored as indices into a dictionary."""
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _require_field(file: InputFile, names: list[str]) -> None:
    if file.field not in names:
        shown = ", ".join(names[:8]) or "none"
        raise DataError(f"{file.path}: has no column {file.field!r} (columns: {shown}). Choose one with --field.")


def _damaged(file: InputFile, error: Exception) -> DataError:
    return DataError(
        f"{file.path}: cannot be read as {file.format} ({str(error).splitlines()[0]}). Copy the file again, or leave "
        "it out."
    )
