"""Documents in a column of a Parquet or Arrow file, which is cut into chunks at row groups or record batches."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.extract.opening import InputChunk, InputFile, Problems, is_url, open_stored
from megabert.errors import DataError

ROWS_A_BATCH = 1024


def part_sizes(file: InputFile) -> list[int]:
    """Return the bytes of each row group or record batch. An Arrow stream, which has no index, is one part.

    Raises:
        DataError: The file is missing or damaged.
    """
    with _source(file) as source:
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
        problems: Unused: a column is typed, so its texts are readable or the whole file is damaged.

    Raises:
        DataError: The file is damaged, or has no such column of strings.
    """
    with _source(chunk.file) as source:
        columns = _columns(chunk.file, source, chunk.start, chunk.end)
        yield from enumerate(text or "" for column in columns for text in column.to_pylist())


@contextmanager
def _source(file: InputFile) -> Iterator[Any]:
    """Hold a local file, mapped, or a remote one, opened; whatever is wrong in it is an error that names it."""
    source = pa.PythonFile(open_stored(file.path), mode="r") if is_url(file.path) else pa.memory_map(file.path)
    with source:
        try:
            yield source
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"{file.path}: cannot be read as {file.format} ({str(error).splitlines()[0]}). Copy the file again, or "
                "leave it out."
            ) from error


def _columns(file: InputFile, source: Any, start: int, end: int) -> Iterator[pa.Array]:
    """Yield the column that holds the text, in arrays of bounded length."""
    batches: Iterable[pa.RecordBatch]
    if file.format == "parquet":
        table = pq.ParquetFile(source)
        groups, names = list(range(start, end)), table.schema_arrow.names
        batches = table.iter_batches(ROWS_A_BATCH, row_groups=groups, columns=[file.field], use_threads=False)
    else:
        try:
            reader = pa.ipc.open_file(source)
            batches = map(reader.get_batch, range(start, end))
        except pa.ArrowInvalid:  # a stream has no footer, by which a file is recognized
            source.seek(0)
            batches = reader = pa.ipc.open_stream(source)
        names = reader.schema.names
    if file.field not in names:
        shown = ", ".join(names[:8]) or "none"
        raise DataError(f"{file.path}: has no column {file.field!r} (columns: {shown}). Choose one with --field.")
    for batch in batches:
        for first in range(0, batch.num_rows, ROWS_A_BATCH):
            column = batch[file.field].slice(first, ROWS_A_BATCH)
            if pa.types.is_dictionary(column.type):  # writers may store texts that repeat as indices into one
                column = column.dictionary_decode()
            if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
                raise DataError(
                    f"{file.path}: the column {file.field!r} holds {column.type}, not text. Choose another one with "
                    "--field."
                )
            yield column
