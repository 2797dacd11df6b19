"""Documents that are lists of ids already: in JSON Lines, in list columns of Parquet and Arrow, in arrays of numpy.

A document has one list or, where a source names a ``second_field``, two: the sides A and B of a pair. Every list is
checked here, id by id, and nothing after this step meets an id that is out of range.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic_core import from_json

from data_prep.execution.records import MAX_DOCUMENT_BYTES, Problems
from data_prep.extract.columns import column_batches, source_of
from data_prep.extract.opening import InputChunk, InputFile, is_url
from data_prep.extract.text import jsonl_lines, line_number
from megabert.foundation.errors import DataError
from megabert.foundation.files import check_regular
from megabert.tokens.tokenization import Tokenizer

OFFSETS_SUFFIX = ".offsets.npy"
"""End of the name of the offsets that belong to an array of ids: ``reads.npy`` has ``reads.offsets.npy``."""
MAX_DOCUMENT_IDS = MAX_DOCUMENT_BYTES // 4
"""Longer documents are left out and counted."""
CHUNK_STEP = 1 << 20
"""Ids of an array that are read at once, about."""
REMEDY = "Fix or remove the list, or allow a share of such lists with --max-bad-share."
Sides = tuple[NDArray[np.integer], ...]
"""The list of ids of a document, or both lists of a pair."""
Lists = tuple[int, list[NDArray[np.integer]] | str]
"""Position of a document (a byte, a row, a number), and its lists, or the problem with them."""


def offsets_path(path: str) -> str:
    """Return the path of the offsets of an array of ids."""
    return path[: -len(".npy")] + OFFSETS_SUFFIX


class IdChecker:
    """Tells which lists are ids of a vocabulary, as they may stand in a document."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Take the vocabulary. Its special ids are refused, for a build adds them itself, except the unknown piece."""
        self._vocab_size = tokenizer.vocab_size
        self._names = tokenizer.names._asdict()
        self._special = {index: role for role, index in tokenizer.special_ids._asdict().items() if role != "unk"}
        self._is_usable_V = np.ones(self._vocab_size, bool)
        self._is_usable_V[list(self._special)] = False

    def problem_of(self, ids: NDArray[np.integer]) -> str:
        """Return the problem of a list, "" if it has none."""
        is_wrong = (ids < 0) | (ids >= self._vocab_size)
        if not is_wrong.any():
            is_wrong = ~self._is_usable_V[ids]
            if not is_wrong.any():
                return ""
        index = int(np.argmax(is_wrong))
        value = int(ids[index])
        if value in self._special:
            name = self._names[self._special[value]]
            return f"{value} at index {index} is the special id {name}, which the build adds or masks itself"
        return f"{value} at index {index} is no id: allowed are 0 to {self._vocab_size - 1}"


def id_documents(chunk: InputChunk, checker: IdChecker, problems: Problems) -> Iterator[Sides]:
    """Yield the lists of each document of a chunk; an empty list is an empty document.

    Raises:
        DataError: The file is damaged, or holds no lists of whole numbers; or a list has a number that is no id, and
            the build may not drop documents.
    """
    for position, sides in _READERS[chunk.file.format](chunk, problems):
        if isinstance(sides, str):
            _refuse(chunk, position, sides, problems)
        elif sum(map(len, sides)) > MAX_DOCUMENT_IDS:
            where = _place(chunk, position)
            problems.add("oversized_documents", f"{chunk.file.path}: {where} has more than {MAX_DOCUMENT_IDS:,} ids")
        elif problem := next(filter(None, map(checker.problem_of, sides)), "") or _half_empty(sides):
            _refuse(chunk, position, problem, problems)
        else:
            yield tuple(sides)
    chunk.file.require_unchanged()


def _refuse(chunk: InputChunk, position: int, problem: str, problems: Problems) -> None:
    where = _place(chunk, position) if problems.shows("bad_ids") else "a list"
    problems.require("bad_ids", f"{chunk.file.path}: {where}: {problem}", REMEDY)


def _half_empty(sides: Sequence[NDArray[np.integer]]) -> str:
    """Return the problem of a pair of which one side has no id."""
    lengths = list(map(len, sides))
    return "one side of the pair is empty" if 0 in lengths and any(lengths) else ""


def _place(chunk: InputChunk, position: int) -> str:
    """Return where a document is, for a message."""
    if chunk.file.format == "jsonl":
        return f"line {line_number(chunk, position)}"
    return f"list {position}" if chunk.file.format == "npy" else f"row {position} of part {chunk.start}"


def _fields(file: InputFile) -> list[str]:
    return [file.field, file.second_field] if file.second_field else [file.field]


def _of_json_lines(chunk: InputChunk, problems: Problems) -> Iterator[Lists]:
    """Yield the place and the lists of each line: an object or, if one list is wanted, a bare list."""
    fields = _fields(chunk.file)
    for start, text in jsonl_lines(chunk, problems):
        try:
            value = from_json(text, cache_strings="keys")
        except ValueError as error:
            yield start, f"is no JSON ({error})"
            continue
        if isinstance(value, list) and len(fields) == 1:
            value = {fields[0]: value}
        yield start, _lists_of(value, fields)


def _lists_of(value: Any, fields: list[str]) -> list[NDArray[np.integer]] | str:
    """Return the lists under some keys of a line's object, or the problem with it."""
    if not isinstance(value, dict):
        return f"holds a {type(value).__name__}, not a JSON object"
    sides: list[NDArray[np.integer]] = []
    for field in fields:
        ids = value.get(field)
        if not isinstance(ids, list):
            return f"has no list under the key {field!r} (keys: {', '.join(list(value)[:8]) or 'none'})"
        if set(map(type, ids)) - {int}:
            index = next(index for index, one in enumerate(ids) if type(one) is not int)
            return f"{json.dumps(ids[index])[:40]} at index {index} of {field!r} is no whole number"
        try:
            sides.append(np.array(ids, np.int64))
        except OverflowError:
            index, large = next((index, one) for index, one in enumerate(ids) if not -(1 << 63) <= one < 1 << 63)
            return f"{large} at index {index} of {field!r} is no id: it has more than 64 bits"
    return sides


def _of_columns(chunk: InputChunk, problems: Problems) -> Iterator[Lists]:
    """Yield the place and the lists of each row; a null is an empty list."""
    file, row, fields = chunk.file, count(), _fields(chunk.file)
    with source_of(file) as source:
        for batch in column_batches(file, source, chunk.start, chunk.end, problems, fields):
            for lists in zip(*(_lists_in(file, batch, field) for field in fields), strict=True):
                missing = [side for side in lists if isinstance(side, str)]
                yield next(row), missing[0] if missing else [side for side in lists if not isinstance(side, str)]


def _lists_in(file: InputFile, batch: pa.RecordBatch, field: str) -> Iterator[NDArray[np.integer] | str]:
    """Yield the lists of a column, or the problem with one; a column of another type is an error."""
    column = batch[field]
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if not is_list or not pa.types.is_integer(kind.value_type):
        raise DataError(
            f"{file.path}: the column {field!r} holds {kind}, not lists of whole numbers. Choose another one with "
            "--field, or write the ids as integers."
        )
    column.validate(full=True)  # Arrow believes the offsets that a file holds, and would follow them out of it
    for cell in column:
        values = cell.values
        if values is None:
            yield np.zeros(0, np.int64)
        elif values.null_count:
            index = values.is_null().to_pylist().index(True)
            yield f"the value at index {index} of {field!r} is missing"
        else:
            yield values.to_numpy(zero_copy_only=False)


def _of_array(chunk: InputChunk, problems: Problems) -> Iterator[Lists]:
    """Yield the place and the ids of each document between two offsets."""
    values, offsets = open_arrays(chunk.file, chunk.start, chunk.end)
    for number in range(chunk.start, chunk.end):
        yield number, [values[offsets[number] : offsets[number + 1]]]


_READERS = {"jsonl": _of_json_lines, "parquet": _of_columns, "arrow": _of_columns, "npy": _of_array}
"""Readers of lists, by the format of the file."""
FORMATS_OF_IDS = tuple(_READERS)


def open_arrays(
    file: InputFile, start: int = 0, end: int | None = None
) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    """Return an array of ids and the offsets of its documents, mapped; the last offset is the number of ids.

    Args:
        file: The array of ids.
        start: First document whose offsets are checked.
        end: The one after the last; None checks all. A chunk's reader checks its own, or each would read all offsets.

    Raises:
        DataError: A file is missing or damaged, or the offsets do not fit the ids.
    """
    other = offsets_path(file.path)
    values, offsets = _open_array(file.path, "ids"), _open_array(other, "offsets")
    if not len(offsets) or offsets[0] != 0 or offsets[-1] != len(values):
        ends = f"{offsets[0]} to {offsets[-1]}" if len(offsets) else "none"
        raise DataError(
            f"{other}: the offsets are {ends}; the ones of {file.path} begin with 0 and end with {len(values)}, the "
            "number of its ids. Write both files again."
        )
    end = len(offsets) - 1 if end is None else end
    for first in range(start, end, CHUNK_STEP):
        part = np.asarray(offsets[first : min(first + CHUNK_STEP, end) + 1])
        if (part[1:] < part[:-1]).any():
            index = first + int(np.argmax(part[1:] < part[:-1]))
            raise DataError(
                f"{other}: the offsets descend: {offsets[index]} at index {index} and then {offsets[index + 1]}. "
                "Write the start of each list, in order, and the number of all ids."
            )
    return values, offsets


def _open_array(path: str, what: str) -> NDArray[np.integer]:
    """Return an array of whole numbers, mapped."""
    if is_url(path):
        raise DataError(f"{path}: arrays of numpy are read from local files. Copy it, or write Parquet.")
    try:
        check_regular(path)
        array: NDArray[Any] = np.load(path, mmap_mode="r")
        if not isinstance(array, np.ndarray):
            raise ValueError("it is an archive of arrays, an npz, and not one array of numpy.save")
    except Exception as error:  # numpy parses the header as text of Python, so that any kind of error may come of it
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(
            f"{path}: cannot be read as an array of {what} ({reason}). Documents of ids in X.npy need their starts, "
            "and the number of all ids, in X.offsets.npy."
        ) from error
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise DataError(
            f"{path}: holds {array.dtype} of shape {array.shape}; {what} are one row of whole numbers. Write it with "
            "numpy.save as such."
        )
    return array


def chunk_borders(file: InputFile, size: int) -> list[tuple[int, int, int]]:
    """Return first document, last one and bytes of the chunks of an array, each of about ``size`` bytes of ids."""
    values, offsets = open_arrays(file)
    step = max(1, size // values.itemsize)
    wanted = np.arange(0, len(values) + step, step)
    borders = np.unique(np.append(np.searchsorted(offsets, wanted), len(offsets) - 1)).clip(max=len(offsets) - 1)
    ends = np.asarray(offsets[borders]).astype(np.int64) * values.itemsize
    return [
        (int(first), int(last), int(end - start))
        for first, last, start, end in zip(borders, borders[1:], ends, ends[1:], strict=False)
        if last > first
    ]
