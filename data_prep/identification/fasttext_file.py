"""The format of fastText's model files (.bin and .ftz), read as far as is needed to trust one.

The library trusts its input: it reads zeros for a lost end, and a damaged number makes it read out of bounds.
So each number that controls the reading is checked here first: sizes are compared with each other and with the size of
the file, and counts of labels with their limit. Two kinds of numbers are not looked at: weights, whose damage gives
wrong answers or an error that `identifier` catches, and counts of words, which only training uses. A restart knows both
by the hash of the file.

The layout follows `FastText::saveModel`, `Args::save`, `Dictionary::save`, `DenseMatrix::save`, `QuantMatrix::save` and
`ProductQuantizer::save` in facebookresearch/fastText 0.9.2.
"""

import mmap
import os
import struct
from pathlib import Path
from typing import Any

from megabert.foundation.errors import DataError
from megabert.foundation.files import open_to_read

MAGIC, VERSIONS = 793_712_314, (11, 12)
SUPERVISED = 3
"""Kind of a model with labels; the others are word vectors."""
LOSSES = (1, 2, 3, 4)
"""Hierarchical softmax, negative sampling, softmax, one against all."""
WORD, LABEL = 0, 1
MAX_COUNT = 10**15
"""Above the count of any label. `HierarchicalSoftmaxLoss::buildTree` gives this number to a node without a count,
and reads out of bounds if a label reaches it."""
CENTROIDS = 256
"""Centroids of each part of a product quantizer."""
PREFIX = "__label__"
REMEDY = "Name a model file that identifies languages, such as lid.176.bin or lid.176.ftz, or fetch it again."


class _Reader(mmap.mmap):
    """A mapped file, off which numbers are taken front to back."""

    def take(self, kinds: str) -> tuple[Any, ...]:
        """Return numbers of these kinds (`struct`); they are not aligned."""
        return struct.unpack(f"<{kinds}", self.read(struct.calcsize(f"<{kinds}")))

    @property
    def left(self) -> int:
        """Number of bytes that are not read yet."""
        return len(self) - self.tell()

    def skip(self, count: int, what: str) -> None:
        """Skip ``count`` bytes; the file must have them."""
        if not 0 <= count <= self.left:
            raise ValueError(f"{what} would take {count:,} bytes, and {self.left:,} are left")
        self.seek(count, os.SEEK_CUR)

    def word(self) -> bytes:
        """Return a word, which a zero ends."""
        end = self.find(b"\0", self.tell())
        if end < 0:
            raise ValueError("a word of its dictionary does not end")
        return self.read(end + 1 - self.tell())[:-1]


def read_labels(path: Path) -> tuple[str, ...]:
    """Return the labels of a model, without their prefix, in the order of the file.

    Raises:
        DataError: The file is missing, no fastText model, one without labels, cut, or damaged.
    """
    try:
        with open_to_read(path) as stream, _Reader(stream.fileno(), 0, access=mmap.ACCESS_READ) as reader:
            return _labels_of(reader)
    except (struct.error, UnicodeDecodeError, ValueError) as error:  # a ValueError: an empty file has no map
        raise DataError(f"language_model={path}: is no sound fastText model ({error}). {REMEDY}") from None
    except OSError as error:
        raise DataError(f"language_model={path}: {error.strerror or error}. {REMEDY}") from None


def _labels_of(reader: _Reader) -> tuple[str, ...]:
    magic, version = reader.take("ii")
    if magic != MAGIC or version not in VERSIONS:
        raise ValueError("it does not begin as one")
    # The arguments that a model was trained with; windows, epochs, rates and the like are left aside.
    dimension, _, _, _, _, word_ngrams, loss, kind, buckets, _, max_characters, _, _ = arguments = reader.take("12id")
    if kind != SUPERVISED:
        raise ValueError("it holds word vectors and no labels")
    has_ngrams = word_ngrams > 1 or max_characters != 0
    if loss not in LOSSES or dimension < 1 or buckets < has_ngrams:  # n-grams need a bucket
        raise ValueError(f"its arguments are senseless: {arguments}")
    labels, words, kept_ngrams = _read_dictionary(reader)
    # Input rows are words and buckets of n-grams, of which a pruned model keeps some. Output rows are labels.
    (is_quantized,) = reader.take("?")
    if kept_ngrams is not None and not is_quantized:
        raise ValueError("it is pruned, but not quantized")
    rows = words + (buckets if kept_ngrams is None else kept_ngrams)
    _skip_matrix(reader, rows, dimension, is_quantized=is_quantized)
    (is_output_quantized,) = reader.take("?")
    _skip_matrix(reader, len(labels), dimension, is_quantized=is_quantized and is_output_quantized)
    if reader.left:
        raise ValueError(f"{reader.left:,} bytes follow its end")
    return tuple(label.decode().removeprefix(PREFIX) for label in labels)


def _read_dictionary(reader: _Reader) -> tuple[list[bytes], int, int | None]:
    """Return the labels, the number of words, and the n-grams that pruning has kept; None of a model not pruned."""
    size, words, count, _, pruned = reader.take("iiiqq")
    if min(words, count) < 0 or size != words + count or not count:
        raise ValueError(f"its dictionary of {size:,} entries has {words:,} words and {count:,} labels")
    labels = []
    for number in range(size):
        entry = reader.word()
        frequency, kind = reader.take("qb")
        if kind not in (WORD, LABEL) or (kind == LABEL) != (number >= words):  # words come first
            raise ValueError(f"entry {number:,} of its dictionary is neither a word nor a label")
        if kind == LABEL:
            if not 0 <= frequency < MAX_COUNT:
                raise ValueError(
                    f"label {number - words:,} of its dictionary has the count {frequency:,}, allowed are 0 to "
                    f"{MAX_COUNT - 1:,}"
                )
            labels.append(entry)
    if pruned < 0:
        return labels, words, None
    for _ in range(min(pruned, len(reader))):
        (_, row) = reader.take("ii")
        if not 0 <= row < pruned:
            raise ValueError(f"an n-gram has row {row:,} of {pruned:,}")
    return labels, words, pruned


def _skip_matrix(reader: _Reader, rows: int, columns: int, *, is_quantized: bool) -> None:
    """Skip a matrix, which must have this number of rows and columns."""
    if not is_quantized:
        _require_shape(reader.take("qq"), rows, columns)
        reader.skip(4 * rows * columns, "its weights")
        return
    (has_norms,) = reader.take("?")
    _require_shape(reader.take("qq"), rows, columns)
    (codes,) = reader.take("i")
    parts = _skip_quantizer(reader, columns, before=codes)
    if codes != rows * parts:
        raise ValueError(f"it has {codes:,} codes for {rows:,} rows of {parts:,} parts")
    if has_norms:
        _skip_quantizer(reader, 1, before=rows)


def _skip_quantizer(reader: _Reader, columns: int, *, before: int) -> int:
    """Pass over codes and the quantizer that they need; return its parts of a row."""
    reader.skip(before, "its codes")
    dimension, parts, size, last = reader.take("4i")
    if dimension != columns or min(parts, size, last) < 1 or (parts - 1) * size + last != columns:
        raise ValueError(
            f"a quantizer of {dimension:,} columns in {parts:,} parts of {size:,} does not fit {columns:,}"
        )
    reader.skip(4 * CENTROIDS * dimension, "its centroids")
    return int(parts)


def _require_shape(shape: tuple[int, ...], rows: int, columns: int) -> None:
    if shape != (rows, columns):
        raise ValueError(f"a matrix has the shape {shape}, and the dictionary needs {(rows, columns)}")
