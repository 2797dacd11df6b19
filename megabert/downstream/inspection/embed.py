"""Vectors for the lines of a file, streamed: a gigabyte of text takes no more memory than a megabyte.

Lines are read and tokenized in blocks, at most as much of a line as the model can use. A group of lines whose vectors
fit a fixed budget is sorted by length, packed, and put back in the file's order. Each group is written before the next
one is computed: to Parquet, or to ``.npy``, whose header gets the number of rows at the end.
"""

# T packed tokens, S tokens of one text, D hidden, which is the width of a vector

import codecs
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from megabert.data.batch import pack_sequences
from megabert.data.packing import runs_within
from megabert.downstream.export.vector_form import VectorForm
from megabert.downstream.inspection.encode_text import check_outputs
from megabert.foundation.errors import ConfigError, DataError
from megabert.foundation.files import atomic_path, open_to_read
from megabert.foundation.json_files import reading
from megabert.models.bert import PretrainingModel
from megabert.settings.command_line.arguments import checks_arguments
from megabert.tokens.tokenization import Tokenizer

Write = Callable[[Sequence[NDArray[np.integer]], Sequence[NDArray[np.float32]]], None]
"""Writes consecutive lines, given their ids and their vectors of shape (D,), or (tokens, D) if tokens are kept."""
BLOCK_LINES = 4096
BLOCK_BYTES = 1 << 20
"""Size of a block of text, which ends with the line that reaches it."""
MAX_LINE_BYTES = 1 << 20
"""So much of a line is tokenized: two thousand bytes for each of BERT's 512 positions."""
BATCH_TOKENS = 8192
"""Packed tokens of a forward pass, unless others are asked for."""
GROUP_BYTES = 1 << 26
"""Memory for the vectors of a group."""


@dataclass
class Embedded:
    """Counts of the lines and tokens that were embedded."""

    lines: int = 0
    tokens: int = 0
    """Tokens that the model read, [CLS] and [SEP] included."""
    truncated: int = 0
    """Lines that were cut because they have more tokens than the model has positions."""
    first_truncated: int = 0
    """Number of the first line that was cut; 0 if none was."""


def embed_file(
    model: PretrainingModel, tokenizer: Tokenizer, path: Path, output: Path, *, form: VectorForm, batch_tokens: int
) -> Embedded:
    """Write one vector for each line, or the vectors of its tokens.

    An empty line is a text without words, ``[CLS] [SEP]``, and has a vector too: row i always belongs to line i + 1.

    Args:
        model: The model, on any device, in evaluation mode.
        tokenizer: The model's tokenizer.
        path: A UTF-8 file with one text per line.
        output: A ``.parquet`` file, or ``.npy`` for one vector per line. It is written whole or not at all.
        form: How a text becomes a vector.
        batch_tokens: Packed tokens of a forward pass; a longer text is a pass of its own.

    Raises:
        ConfigError: The output's suffix is unknown, or its format cannot hold token vectors.
        DataError: The file is missing, empty or not UTF-8.
    """
    counts = Embedded()
    width, limit = form.width(model.config.hidden_size), form.limit(model.config.max_position_embeddings)
    with (
        torch.inference_mode(),
        open_vectors(output, width=width, pieces=tokenizer.pieces if form.has_tokens else None) as write,
    ):
        for lines in read_blocks(path):
            sequences = _encode(tokenizer, lines, form.prompt, limit, counts)
            sizes = [4 * width * (len(ids) if form.has_tokens else 1) for ids in sequences]
            for run in runs_within(range(len(sizes)), sizes, GROUP_BYTES):
                group = [sequences[index] for index in run]
                write(group, _vectors(model, group, form, batch_tokens))
        if not counts.lines:
            raise DataError(f"{path}: is empty. Give a file with one text per line.")
    return counts


@checks_arguments
@torch.inference_mode()
def embed_texts(
    model: PretrainingModel, tokenizer: Tokenizer, texts: Sequence[str], *, form: VectorForm
) -> list[NDArray[np.float32]]:
    """Return a vector of shape (D,) for each text, or with ``tokens`` its tokens' vectors of shape (S, D).

    See `embed_file` for the arguments. A text that is too long is refused instead of cut.

    Raises:
        ConfigError: A text has more tokens than the model has positions.
    """
    counts, limit = Embedded(), form.limit(model.config.max_position_embeddings)
    sequences = _encode(tokenizer, [Line(text, True) for text in texts], form.prompt, limit, counts)
    if counts.truncated:
        raise ConfigError(
            f"text {counts.first_truncated} of {len(texts)} has more tokens than the {limit} that the model reads. "
            "Shorten it, or split it and take the mean of its parts."
        )
    return _vectors(model, sequences, form, BATCH_TOKENS)


class Line(NamedTuple):
    """A line of a file, without its end."""

    text: str
    is_whole: bool
    """Whether the text is all of the line: of a very long one it is the beginning, up to a space if there is one."""


def read_blocks(path: Path) -> Iterator[list[Line]]:
    """Yield the lines of a UTF-8 file, a block at a time.

    Raises:
        DataError: The file cannot be read, or a line is not UTF-8.
    """
    number = size = 0
    block: list[Line] = []
    with reading(path), open_to_read(path) as stream:
        while start := stream.readline(MAX_LINE_BYTES):
            number += 1
            block.append(_read_line(start, stream, path, number))
            size += len(start)
            if len(block) == BLOCK_LINES or size >= BLOCK_BYTES:
                yield block
                block = []
            # Bytes are counted over blocks of BLOCK_LINES: other borders would pack other lines together, which
            # changes the last digits of vectors.
            if size >= BLOCK_BYTES:
                size = 0
    if block:
        yield block


def _read_line(start: bytes, stream: BinaryIO, path: Path, number: int) -> Line:
    """Decode a line and read to its end; the part of it beyond ``MAX_LINE_BYTES`` is not kept."""
    is_whole = start.endswith(b"\n") or len(start) < MAX_LINE_BYTES
    try:
        text = codecs.getincrementaldecoder("utf-8-sig" if number == 1 else "utf-8")().decode(start, final=is_whole)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}:{number}: byte {error.start + 1} of the line is not UTF-8 ({error.reason}). "
            "Convert the file, such as with: iconv -f ENCODING -t UTF-8"
        ) from None
    if is_whole:
        return Line(text.rstrip("\r\n"), True)
    while len(part := stream.readline(MAX_LINE_BYTES)) == MAX_LINE_BYTES and not part.endswith(b"\n"):
        pass
    # Cut between two words, so that the last one has the same pieces as in the whole line.
    return Line(text[: text.rfind(" ") + 1] or text, False)


def _encode(
    tokenizer: Tokenizer, lines: list[Line], prompt: str, limit: int, counts: Embedded
) -> list[NDArray[np.int32]]:
    """Return ``[CLS] text [SEP]`` of each line after a prompt, cut to the model's positions; count lines and tokens."""
    sequences = []
    for line, ids in zip(lines, tokenizer.encode_batch([prompt + line.text for line in lines]), strict=True):
        counts.lines += 1
        if len(ids) > limit - 2 or not line.is_whole:
            counts.truncated += 1
            counts.first_truncated = counts.first_truncated or counts.lines
        sequences.append(tokenizer.join(ids[: limit - 2])[0])
        counts.tokens += len(sequences[-1])
    return sequences


def _vectors(model: PretrainingModel, group: list[NDArray], form: VectorForm, batch_tokens: int) -> list[NDArray]:
    """Return each sequence's vector, or its tokens' vectors, in float32 and in the order of the group."""
    device = next(model.parameters()).device
    # Sequences of similar length share a pass; each vector is put back at its index.
    vectors: list[NDArray] = [np.empty(0)] * len(group)
    lengths = [len(ids) for ids in group]
    for chosen in runs_within(np.argsort(lengths, kind="stable").tolist(), lengths, batch_tokens):
        hidden_TD, _ = model.bert(pack_sequences([group[index] for index in chosen]).to(device))
        hidden_TD = check_outputs(hidden_TD.float())
        for index, hidden_SD in zip(chosen, hidden_TD.split([lengths[index] for index in chosen]), strict=True):
            # Without the copy, a view of one row would keep the whole batch in memory.
            vectors[index] = form.pool(hidden_SD).cpu().numpy().copy()
    return vectors


@contextmanager
def open_vectors(path: Path, *, width: int, pieces: Sequence[str] | None = None) -> Iterator[Write]:
    """Open a file for vectors; it appears once the block has ended without an error.

    Args:
        path: ``.parquet`` (columns ``line``, from 1, and ``embedding``; with tokens ``line``, ``tokens``,
            ``embeddings``) or ``.npy`` (float32 of shape (lines, D)).
        width: Size D of a vector.
        pieces: The vocabulary, if each token has a vector; None if each line has one. `check_output` has accepted both.
    """
    with (
        atomic_path(path) as temporary,
        open(temporary, "xb") as stream,
        _npy(stream, width) if path.suffix == ".npy" else _parquet(stream, width, pieces) as write,
    ):
        yield write


def check_output(path: Path, *, has_tokens: bool) -> None:
    """Refuse a file name whose format cannot hold the vectors.

    Raises:
        ConfigError: The suffix is neither ``.parquet`` nor ``.npy``, or vectors of tokens are to go to a ``.npy`` file.
    """
    if path.suffix not in (".parquet", ".npy"):
        raise ConfigError(f"{path}: vectors go to .parquet or .npy, not to {path.suffix or 'a name without suffix'}.")
    if has_tokens and path.suffix == ".npy":
        raise ConfigError(f"{path}: an array cannot hold lines that differ in length. Write to .parquet.")


@contextmanager
def _npy(stream: BinaryIO, width: int) -> Iterator[Write]:
    lines = 0

    def header() -> None:
        # numpy leaves room for a growing first axis, so the last header is as long as the first, which it overwrites.
        content = {"descr": "<f4", "fortran_order": False, "shape": (lines, width)}
        np.lib.format.write_array_header_1_0(stream, content)

    def write(ids: Sequence[NDArray], vectors: Sequence[NDArray]) -> None:
        nonlocal lines
        lines += len(vectors)
        stream.write(np.stack(vectors).astype("<f4", copy=False).tobytes())

    header()
    begin = stream.tell()
    yield write
    stream.seek(0)
    header()
    assert stream.tell() == begin


@contextmanager
def _parquet(stream: BinaryIO, width: int, pieces: Sequence[str] | None) -> Iterator[Write]:
    vector = pa.list_(pa.float32(), width)
    by_token = [("tokens", pa.list_(pa.string())), ("embeddings", pa.list_(vector))]
    schema = pa.schema([("line", pa.int64()), *([("embedding", vector)] if pieces is None else by_token)])
    lines = 0

    def write(ids: Sequence[NDArray], vectors: Sequence[NDArray]) -> None:
        nonlocal lines
        # All vectors are one flat array; offsets say which tokens belong to which line.
        columns = [pa.array(range(lines + 1, lines + 1 + len(vectors)), pa.int64())]
        flat = np.concatenate([array.reshape(-1) for array in vectors])
        rows = pa.FixedSizeListArray.from_arrays(pa.array(flat, pa.float32()), width)
        if pieces is None:
            columns.append(rows)
        else:
            offsets = pa.array(np.cumsum([0, *map(len, ids)]), pa.int32())
            texts = pa.array([pieces[index] for index in chain.from_iterable(ids)], pa.string())
            columns += [pa.ListArray.from_arrays(offsets, texts), pa.ListArray.from_arrays(offsets, rows)]
        lines += len(vectors)
        writer.write_table(pa.table(columns, schema=schema))

    with pq.ParquetWriter(stream, schema, compression="zstd", compression_level=1, use_dictionary=False) as writer:
        yield write
