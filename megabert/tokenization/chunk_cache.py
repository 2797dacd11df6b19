"""Exact fast tokenization: printable ASCII is cut into pieces here, any other chunk between spaces is looked up.

WordPiece never crosses a space, and nothing in BERT's normaliser looks past one, so the ids of a text are those
of its chunks end to end. Only U+0020 parts chunks: other white space is treated differently by different
libraries, and stays inside a chunk, where `tokenizers` itself decides; it is asked once a chunk. In printable
ASCII the normaliser is lower-casing or nothing, and every character that is no letter, digit or space is a word.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from megabert.tokenization.backend import CONTINUATION

MAX_CHUNKS = 1 << 18
"""Different chunks remembered; about 60 bytes each."""
_MAX_IDS = 1 << 22
_WORDS = 1 << 18
"""Words of printable ASCII remembered, 32 bytes each: their letters in 16 bytes and up to four ids."""
_BATCH_BYTES = 1 << 23

Encode = Callable[[list[str]], list[list[int]]]


@dataclass(frozen=True, eq=False)
class AsciiPieces:
    """The pieces that words of printable ASCII are cut into, for `megabert.tokenization.wordpiece_loops`."""

    trie: tuple[NDArray[np.uint64], NDArray[np.int32]]
    """Edges of the trie of all pieces, and the id of the piece that ends at each node."""
    is_lower: bool
    """Whether upper case counts as lower case."""
    unknown: int
    """Id of [UNK]."""

    @classmethod
    def of(cls, vocabulary: Mapping[str, int], unknown: int, *, is_lower: bool) -> "AsciiPieces":
        """Enter a vocabulary (ids by piece)."""
        from megabert.tokenization.wordpiece_loops import INITIAL, INSIDE, enter_pieces

        pieces = [(piece, index) for piece, index in vocabulary.items() if piece.isascii()]
        is_inside = [piece.startswith(CONTINUATION) for piece, _ in pieces]
        texts = [piece.removeprefix(CONTINUATION) for piece, _ in pieces]
        offsets = np.cumsum([0, *map(len, texts)])
        roots = np.where(is_inside, INSIDE, INITIAL)
        entries = np.frombuffer("".join(texts).encode(), np.uint8), offsets, roots
        ids = np.array([index for _, index in pieces], np.int32)
        most = int(offsets[-1])
        for _ in range(2):  # pieces share prefixes: the second time the size is known, and a small table is a fast one
            trie = _zeros(2 * most), np.full(most + 2, -1, np.int32)
            enter_pieces(*entries, ids, trie)
            most = int(np.count_nonzero(trie[0]))
        return cls(trie, is_lower, unknown)

    @classmethod
    def none(cls) -> "AsciiPieces":
        """Return what stands for them where all chunks are looked up."""
        return cls((_zeros(1), np.full(3, -1, np.int32)), False, 0)


def _zeros(least: int) -> NDArray[np.uint64]:
    """Return an empty hash table with room for ``least`` entries: a power of two."""
    return np.zeros(1 << max(least, 2).bit_length(), np.uint64)


class ChunkCache:
    """Ids of the chunks seen so far, in growing arrays. It is emptied when it is full, which bounds memory."""

    def __init__(
        self,
        encode: Encode,
        pieces: AsciiPieces | None = None,
        *,
        max_chunks: int = MAX_CHUNKS,
        max_ids: int = _MAX_IDS,
    ) -> None:
        """Start empty.

        Args:
            encode: Gives the ids of each of many texts.
            pieces: For words of printable ASCII; without it these are chunks like any others.
            max_chunks: Chunks remembered at most, but for those of the batch at hand.
            max_ids: Ids remembered at most, likewise.
        """
        self._encode, self._has_words = encode, pieces is not None
        self._pieces = pieces or AsciiPieces.none()
        self._limits = (max_chunks, max_ids)
        self._clear()

    def _clear(self) -> None:
        self._table = np.full(1 << 12, -1, np.int32)
        self._held, self._ends = np.zeros(1 << 14, np.uint8), np.zeros(1 << 10, np.int64)
        self._count = np.zeros(1, np.int64)
        self._ids, self._starts = np.zeros(1 << 12, np.int32), np.zeros(1 << 10, np.int64)
        self._words = np.zeros((_WORDS if self._has_words else 1, 4), np.uint64)

    def __len__(self) -> int:
        """Return the number of chunks remembered."""
        return int(self._count[0])

    def encode_flat(self, texts: Sequence[str] | pa.StringArray) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Tokenize texts; see `Tokenizer.encode_flat`."""
        ids, lengths = [], []
        for batch in _batches(texts):
            if len(self) > self._limits[0] or self._starts[len(self)] > self._limits[1]:
                self._clear()
            batch_ids, batch_lengths = self._encode_batch(batch)
            ids.append(batch_ids)
            lengths.append(batch_lengths)
        offsets = np.zeros(len(texts) + 1, dtype=np.int64)
        np.cumsum(_joined(lengths, np.int64), out=offsets[1:])
        return _joined(ids, np.int32), offsets

    def _encode_batch(self, texts: pa.StringArray) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return all ids of a batch and how many each text has."""
        from megabert.tokenization.wordpiece_loops import count_other, encode

        _, borders, data = texts.buffers()
        offsets = np.frombuffer(borders, np.int32)[texts.offset : texts.offset + len(texts) + 1]
        text = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
        slots = np.empty(count_other(text, offsets, self._has_words), np.int32)
        self._find(text, offsets, slots)
        room = int(offsets[-1] - offsets[0]) + int(np.diff(self._starts)[slots].sum())
        ids, lengths = np.empty(room + 1, np.int32), np.empty(len(texts), np.int64)
        pieces = (self._words, self._pieces.trie, self._pieces.is_lower, np.int32(self._pieces.unknown))
        chunks = (slots, self._starts, self._ids)
        made = encode(text, offsets, self._has_words, pieces, chunks, ids, lengths)
        return ids[:made], lengths

    def _find(self, text: NDArray[np.uint8], offsets: NDArray[np.int32], slots: NDArray[np.int32]) -> None:
        """Number the chunks that are looked up, and let `tokenizers` encode those that are new."""
        from megabert.tokenization.wordpiece_loops import find_chunks

        if not len(slots):
            return
        most, size = len(self) + len(slots), int(offsets[-1] - offsets[0])
        self._ends, self._starts = _grown(self._ends, most + 1), _grown(self._starts, most + 1)
        self._held = _grown(self._held, int(self._ends[len(self)]) + size)
        if 2 * most > len(self._table):
            self._table = self._rehashed(4 * most)
        first, fresh = len(self), np.empty((len(slots), 2), np.int64)
        known = (self._held, self._ends, self._count)
        made = find_chunks(text, offsets, self._has_words, self._table, known, fresh, slots)
        try:
            found = self._encode([bytes(text[start:end]).decode() for start, end in fresh[:made].tolist()])
        except BaseException:
            self._clear()  # new chunks are in the table, their ids are not
            raise
        ends = self._starts[first] + np.cumsum(np.fromiter(map(len, found), np.int64, made))
        if made:
            self._ids = _grown(self._ids, int(ends[-1]))
            self._ids[self._starts[first] : ends[-1]] = [index for ids in found for index in ids]
            self._starts[first + 1 : first + 1 + made] = ends

    def _rehashed(self, size: int) -> NDArray[np.int32]:
        """Return a larger table with the chunks that are known."""
        from megabert.tokenization.wordpiece_loops import enter_all

        table = np.full(1 << size.bit_length(), -1, np.int32)
        enter_all(table, self._held, self._ends, len(self))
        return table


def _batches(texts: Sequence[str] | pa.StringArray) -> list[pa.StringArray]:
    """Cut texts into batches of bounded size, so that a huge call needs no huge work arrays."""
    array = texts if isinstance(texts, pa.Array) else pa.array(texts, pa.string())
    ends = np.cumsum(pc.binary_length(array).to_numpy(), dtype=np.int64) // _BATCH_BYTES
    borders = np.flatnonzero(np.diff(ends)) + 1
    edges = [0, *borders.tolist(), len(array)]
    return [array.slice(start, end - start) for start, end in pairwise(edges) if end > start]


def _joined(parts: list[NDArray], dtype: type) -> NDArray:
    """Return arrays end to end; a single one as it is."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else np.zeros(0, dtype)


def _grown(array: NDArray, size: int) -> NDArray:
    """Return the array, or a copy of at least twice its size if it is too small."""
    if size <= len(array):
        return array
    larger = np.zeros(max(size, 2 * len(array)), dtype=array.dtype)
    larger[: len(array)] = array
    return larger
