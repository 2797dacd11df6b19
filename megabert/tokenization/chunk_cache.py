"""Exact fast tokenization: a chunk of text between two spaces is given to `tokenizers` once, then looked up.

WordPiece never crosses a space, and nothing in BERT's normaliser looks past one, so the ids of a text are those
of its chunks end to end. Only U+0020 parts chunks: other white space is treated differently by different
libraries, and stays inside a chunk, where `tokenizers` itself decides.
"""

from collections.abc import Callable, Sequence
from itertools import count, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

MAX_CHUNKS = 1 << 18
"""Different chunks remembered; about 100 bytes each."""
_MAX_IDS = 1 << 22
_BATCH_BYTES = 1 << 23

Encode = Callable[[list[str]], list[list[int]]]


class ChunkCache:
    """Ids of the chunks seen so far, in one growing array. It is emptied when it is full, which bounds memory."""

    def __init__(self, encode: Encode, *, max_chunks: int = MAX_CHUNKS, max_ids: int = _MAX_IDS) -> None:
        """Start empty.

        Args:
            encode: Gives the ids of each of many texts.
            max_chunks: Chunks remembered at most, but for those of the batch at hand.
            max_ids: Ids remembered at most, likewise.
        """
        self._encode = encode
        self._limits = (max_chunks, max_ids)
        self._clear()

    def _clear(self) -> None:
        self._slots: dict[str, int] = {}
        self._starts = np.zeros(1024, dtype=np.int64)
        self._lengths = np.zeros(1024, dtype=np.int64)
        self._ids = np.zeros(4096, dtype=np.int32)
        self._used = 0

    def __len__(self) -> int:
        """Return the number of chunks remembered."""
        return len(self._slots)

    def encode_flat(self, texts: Sequence[str] | pa.StringArray) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Tokenize texts; see `Tokenizer.encode_flat`."""
        ids, lengths = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
        for batch in _batches(texts):
            if len(self._slots) > self._limits[0] or self._used > self._limits[1]:
                self._clear()
            batch_ids, batch_lengths = self._encode_batch(batch)
            ids.append(batch_ids)
            lengths.append(batch_lengths)
        offsets = np.zeros(len(texts) + 1, dtype=np.int64)
        np.cumsum(np.concatenate(lengths), out=offsets[1:])
        return np.concatenate(ids), offsets

    def _encode_batch(self, texts: pa.StringArray) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return all ids of a batch and how many each text has."""
        parts = pc.split_pattern(texts, " ")
        text_starts = parts.offsets.to_numpy() - parts.offsets[0].as_py()
        coded = parts.flatten().dictionary_encode()
        slots = self._slots_of(coded.dictionary.to_pylist())[coded.indices.to_numpy()]
        lengths = self._lengths[slots]
        ends = np.concatenate([[0], np.cumsum(lengths)])
        # Source index of each id: its place in the output, moved by how far its chunk is from its source.
        shift = np.repeat(self._starts[slots] - ends[:-1], lengths)
        return self._ids[shift + np.arange(ends[-1])], np.diff(ends[text_starts])

    def _slots_of(self, chunks: list[str]) -> NDArray[np.int64]:
        slots = list(map(self._slots.get, chunks))
        fresh = [chunk for chunk, slot in zip(chunks, slots, strict=True) if slot is None]
        if fresh:
            following = count(len(self._slots))
            self._add(fresh, self._encode(fresh))
            slots = [next(following) if slot is None else slot for slot in slots]
        return np.array(slots, dtype=np.int64)

    def _add(self, chunks: list[str], id_lists: list[list[int]]) -> None:
        first = len(self._slots)
        last = first + len(chunks)
        lengths = np.fromiter(map(len, id_lists), dtype=np.int64, count=len(chunks))
        total = int(lengths.sum())
        self._starts = _grown(self._starts, last)
        self._lengths = _grown(self._lengths, last)
        self._ids = _grown(self._ids, self._used + total)
        self._lengths[first:last] = lengths
        self._starts[first:last] = self._used + np.cumsum(lengths) - lengths
        self._ids[self._used : self._used + total] = [index for ids in id_lists for index in ids]
        self._used += total
        self._slots.update(zip(chunks, range(first, last), strict=True))


def _batches(texts: Sequence[str] | pa.StringArray) -> list[pa.StringArray]:
    """Cut texts into batches of bounded size, so that a huge call needs no huge work arrays."""
    array = texts if isinstance(texts, pa.Array) else pa.array(texts, pa.string())
    ends = np.cumsum(pc.binary_length(array).to_numpy(), dtype=np.int64) // _BATCH_BYTES
    borders = np.flatnonzero(np.diff(ends)) + 1
    edges = [0, *borders.tolist(), len(array)]
    return [array.slice(start, end - start) for start, end in pairwise(edges) if end > start]


def _grown(array: NDArray, size: int) -> NDArray:
    """Return the array, or a copy of at least twice its size if it is too small."""
    if size <= len(array):
        return array
    larger = np.zeros(max(size, 2 * len(array)), dtype=array.dtype)
    larger[: len(array)] = array
    return larger
