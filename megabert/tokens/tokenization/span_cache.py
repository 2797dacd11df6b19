"""Exact fast tokenization: plain text is cut into pieces here, any other span of text is looked up. Imports numba.

WordPiece never crosses a space or a character that is a word of its own, and nothing in BERT's normaliser looks past
one. So the ids of a text are the ids of its spans, end to end. Of white space only U+0020 separates spans. Libraries
treat other white space differently, so it stays inside a span and `tokenizers` itself interprets it; it is asked once
for each different span. In printable ASCII the normaliser lower-cases or does nothing, and every character but letters,
digits and the space is a word. `megabert.tokens.tokenization.characters` lists the other characters that are as simple.

A word of byte-level BPE never crosses a space either, but begins with one; its spans do likewise (`span_loops`).
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from megabert.tokens.tokenization import byte_bpe_loops, wordpiece_loops
from megabert.tokens.tokenization.byte_bpe_loops import enter_merges
from megabert.tokens.tokenization.character_kinds import LETTER
from megabert.tokens.tokenization.span_loops import REMEMBERED_IDS, SpanOptions, count_looked_up, enter_all, find_spans
from megabert.tokens.tokenization.tokenizer_kinds import CONTINUATION, byte_characters
from megabert.tokens.tokenization.wordpiece_loops import INITIAL, INSIDE, enter_pieces

MAX_SPANS = 1 << 18
"""How many different spans are remembered, without the current batch's; each takes about 60 bytes."""
MAX_IDS = 1 << 22
"""How many ids are remembered, likewise."""
_WORDS = 1 << 18
"""How many words of printable ASCII are remembered, in 32 bytes each: 16 for their letters, and up to four ids."""
_BATCH_BYTES = 1 << 23

Encode = Callable[[list[str]], list[list[int]]]


class WordPieces(NamedTuple):
    """The pieces of WordPiece, in the order in which `megabert.tokens.tokenization.wordpiece_loops` takes them."""

    trie: tuple[NDArray[np.uint64], NDArray[np.int32]]
    """Edges of the trie of the pieces of plain words, and the id of the piece that ends at each node."""
    single_ids: NDArray[np.int32]
    """Id of each character up to U+FFFF, if it is a word of its own."""
    is_lower: bool
    """Whether upper case counts as lower case."""
    unknown: np.int32
    """Id of [UNK]."""
    longest: int
    """Words of more characters become [UNK]."""

    @classmethod
    def of(
        cls, vocabulary: Mapping[str, int], kinds: NDArray[np.uint8], *, is_lower: bool, unknown: int, longest: int
    ) -> "WordPieces":
        """Build the trie of a vocabulary, which maps pieces to ids.

        Args:
            vocabulary: Ids by piece.
            kinds: Kinds of characters, from `characters.character_kinds`.
            is_lower: As the field.
            unknown: Likewise.
            longest: Likewise.
        """
        single_ids = np.full(len(kinds), unknown, np.int32)
        for piece, index in vocabulary.items():
            if len(piece) == 1 and ord(piece) < len(kinds):
                single_ids[ord(piece)] = index
        plain = {chr(code) for code in np.flatnonzero(kinds == LETTER).tolist()}.union(map(chr, range(128)))
        pieces = [(piece, index) for piece, index in vocabulary.items() if plain.issuperset(piece)]
        is_inside = [piece.startswith(CONTINUATION) for piece, _ in pieces]
        texts = [piece.removeprefix(CONTINUATION).encode() for piece, _ in pieces]
        offsets = np.cumsum([0, *map(len, texts)])
        roots = np.where(is_inside, INSIDE, INITIAL)
        entries = np.frombuffer(b"".join(texts), np.uint8), offsets, roots
        ids = np.array([index for _, index in pieces], np.int32)
        most = int(offsets[-1])
        # Pieces share prefixes, so the number of edges is known only after the trie was built. It is built again in a
        # table of the right size, because a small table is a fast one.
        for _ in range(2):
            trie = _zeros(2 * most), np.full(most + 2, -1, np.int32)
            enter_pieces(*entries, ids, trie)
            most = int(np.count_nonzero(trie[0]))
        return cls(trie, single_ids, is_lower, np.int32(unknown), longest)


class BytePieces(NamedTuple):
    """The merges of byte-level BPE, in the order in which `megabert.tokens.tokenization.byte_bpe_loops` takes them."""

    byte_ids: NDArray[np.int32]
    """Id of the piece of each byte."""
    keys: NDArray[np.uint64]
    """Hash table of the pairs of pieces that are merged."""
    ranks: NDArray[np.int64]
    """Number of the merge in each slot of the table."""
    merged_ids: NDArray[np.int32]
    """Id of the piece that each merge makes."""

    @classmethod
    def of(cls, vocabulary: Mapping[str, int], merges: Sequence[Sequence[str]]) -> "BytePieces":
        """Build the table of merges, pairs of pieces in the order in which they were learned."""
        byte_ids = np.array([vocabulary[character] for character in byte_characters()], np.int32)
        lefts, rights, merged_ids = (
            np.array([vocabulary[piece] for piece in pieces], np.int32)
            for pieces in ([m[0] for m in merges], [m[1] for m in merges], [m[0] + m[1] for m in merges])
        )
        keys = _zeros(2 * len(merges))
        ranks = np.zeros(len(keys), np.int64)
        enter_merges(lefts, rights, keys, ranks)
        return cls(byte_ids, keys, ranks, merged_ids)


def _zeros(least: int) -> NDArray[np.uint64]:
    """Return an empty hash table with room for ``least`` entries: a power of two."""
    return np.zeros(1 << max(least, 2).bit_length(), np.uint64)


class SpanCache:
    """Ids of the spans seen so far, in growing arrays. It is emptied when it is full, which bounds memory."""

    def __init__(
        self,
        encode: Encode,
        pieces: WordPieces | BytePieces | None = None,
        *,
        kinds: NDArray[np.uint8] | None = None,
        keeps_spaces: bool = False,
    ) -> None:
        """Start empty.

        Args:
            encode: Returns the ids of each of many texts.
            pieces: Pieces for the words of plain spans; without them, such spans are looked up like all others.
            kinds: Kinds of characters, from `characters.character_kinds`; without them only printable ASCII is plain.
            keeps_spaces: Whether a word begins with the space before it (byte-level BPE).
        """
        kinds = np.zeros(1 << 16, np.uint8) if kinds is None else kinds
        self._encode, self._options = encode, SpanOptions(pieces is not None, keeps_spaces, kinds)
        # Without pieces no span is plain, but the loops need arrays.
        self._pieces = pieces or WordPieces.of({}, kinds, is_lower=False, unknown=0, longest=0)
        self._clear()

    def _clear(self) -> None:
        self._table = np.full(1 << 12, -1, np.int32)
        self._held, self._ends = np.zeros(1 << 14, np.uint8), np.zeros(1 << 10, np.int64)
        self._count = np.zeros(1, np.int64)
        self._ids, self._starts = np.zeros(1 << 12, np.int32), np.zeros(1 << 10, np.int64)
        self._words = np.zeros((_WORDS if self._options.has_words else 1, 4), np.uint64)

    def __len__(self) -> int:
        """Return the number of spans remembered."""
        return int(self._count[0])

    def encode_flat(self, texts: Sequence[str] | pa.StringArray) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Tokenize texts; see `Tokenizer.encode_flat`."""
        ids, lengths = [], []
        for batch in _batches(texts):
            if len(self) > MAX_SPANS or self._starts[len(self)] > MAX_IDS:
                self._clear()
            batch_ids, batch_lengths = self._encode_batch(batch)
            ids.append(batch_ids)
            lengths.append(batch_lengths)
        offsets = np.cumsum(np.concatenate([[0], *lengths]), dtype=np.int64)
        return ids[0] if len(ids) == 1 else np.concatenate(ids), offsets

    def _encode_batch(self, texts: pa.StringArray) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return all ids of a batch and how many each text has."""
        _, borders, data = texts.buffers()
        offsets = np.frombuffer(borders, np.int32)[texts.offset : texts.offset + len(texts) + 1]
        text = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
        # Count, look up, write: numba has no growing arrays, so each pass sizes the arrays of the next one.
        slots = np.empty(count_looked_up(text, offsets, self._options), np.int32)
        self._find(text, offsets, slots)
        room = int(offsets[-1] - offsets[0]) + int(np.diff(self._starts)[slots].sum())
        ids, lengths = np.empty(room + REMEMBERED_IDS - 1, np.int32), np.empty(len(texts), np.int64)
        pieces, spans = (self._words, *self._pieces), (slots, self._starts, self._ids)
        loops = wordpiece_loops if isinstance(self._pieces, WordPieces) else byte_bpe_loops
        count = loops.encode(text, offsets, self._options, pieces, spans, ids, lengths)
        return ids[:count], lengths

    def _find(self, text: NDArray[np.uint8], offsets: NDArray[np.int32], slots: NDArray[np.int32]) -> None:
        """Number the spans that are looked up, and let `tokenizers` encode the new ones."""
        if not len(slots):
            return
        # Make room as if all spans were new.
        most, size = len(self) + len(slots), int(offsets[-1] - offsets[0])
        self._ends, self._starts = _grown(self._ends, most + 1), _grown(self._starts, most + 1)
        self._held = _grown(self._held, int(self._ends[len(self)]) + size)
        if 2 * most > len(self._table):
            self._table = self._rehashed(4 * most)
        first, fresh = len(self), np.empty((len(slots), 2), np.int64)
        known = (self._held, self._ends, self._count)
        num_new = find_spans(text, offsets, self._options, self._table, known, fresh, slots)
        try:
            id_lists = self._encode([bytes(text[start:end]).decode() for start, end in fresh[:num_new].tolist()])
        except BaseException:
            self._clear()  # the new spans are in the table already, but their ids are not
            raise
        # Ids are stored end to end in the order of the spans' numbers, which is the order in which they were first met.
        ends = self._starts[first] + np.cumsum(np.fromiter(map(len, id_lists), np.int64, num_new))
        if num_new:
            self._ids = _grown(self._ids, int(ends[-1]))
            self._ids[self._starts[first] : ends[-1]] = [index for ids in id_lists for index in ids]
            self._starts[first + 1 : first + 1 + num_new] = ends

    def _rehashed(self, size: int) -> NDArray[np.int32]:
        """Return a larger table with the spans that are known."""
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


def _grown(array: NDArray, size: int) -> NDArray:
    """Return the array, or a copy of at least twice its size if it is too small."""
    if size <= len(array):
        return array
    larger = np.zeros(max(size, 2 * len(array)), dtype=array.dtype)
    larger[: len(array)] = array
    return larger
