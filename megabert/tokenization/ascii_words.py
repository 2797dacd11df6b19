"""Exact WordPiece of printable ASCII without `tokenizers`: there the normaliser is lower-casing or nothing.

Most chunks of most texts are such, and `tokenizers` takes 7 microseconds for each, whatever its length; here a chunk
takes one, because words are remembered without their punctuation and case. Everything else goes to `tokenizers`.
"""

import re
from collections.abc import Callable, Mapping

from megabert.tokenization.backend import CONTINUATION, MAX_WORD_CHARACTERS

MAX_WORDS = 1 << 18
"""Words remembered before all are forgotten; about 200 bytes each."""
# BERT's splitter makes every ASCII character that is no letter, digit or white space a word of its own.
WORDS = re.compile(r"[0-9A-Za-z]+|[^0-9A-Za-z ]")

Encode = Callable[[list[str]], list[list[int]]]


class AsciiWords:
    """Encodes chunks between spaces: printable ASCII by word, the rest by `tokenizers`."""

    def __init__(self, vocabulary: Mapping[str, int], unknown: int, *, is_lower: bool, encode: Encode) -> None:
        """Start with nothing remembered.

        Args:
            vocabulary: Ids by piece.
            unknown: Id of [UNK].
            is_lower: Whether the tokenizer lower-cases.
            encode: What `tokenizers` makes of chunks.
        """
        self._initial = {piece: index for piece, index in vocabulary.items() if not piece.startswith(CONTINUATION)}
        self._inside = {
            piece.removeprefix(CONTINUATION): index
            for piece, index in vocabulary.items()
            if piece.startswith(CONTINUATION)
        }
        # A word may spell a continuation piece only with its marks, which the splitter takes apart.
        self._longest = max(map(len, [*self._initial, *self._inside]))
        self._unknown, self._is_lower, self._encode = [unknown], is_lower, encode
        self._known: dict[str, list[int]] = {}

    def encode(self, chunks: list[str]) -> list[list[int]]:
        """Return the ids of each chunk."""
        found: list[list[int]] = []
        others: list[int] = []
        known, pieces_of, split = self._known, self._pieces_of, WORDS.findall
        if len(known) > MAX_WORDS:
            known.clear()
        for index, chunk in enumerate(chunks):
            if not (chunk.isascii() and chunk.isprintable()):
                others.append(index)
                found.append([])
                continue
            ids: list[int] = []
            for word in split(chunk.lower() if self._is_lower else chunk):
                pieces = known.get(word)
                if pieces is None:
                    pieces = known[word] = pieces_of(word)
                ids += pieces
            found.append(ids)
        if others:
            for index, ids in zip(others, self._encode([chunks[index] for index in others]), strict=True):
                found[index] = ids
        return found

    def _pieces_of(self, word: str) -> list[int]:
        """Cut a word greedily into the longest pieces (Wu et al. 2016); [UNK] where one is missing."""
        if len(word) > MAX_WORD_CHARACTERS:
            return self._unknown
        pieces: list[int] = []
        start, length = 0, len(word)
        table = self._initial
        while start < length:
            end = min(length, start + self._longest)
            while (piece := table.get(word[start:end])) is None:
                end -= 1
                if end == start:
                    return self._unknown
            pieces.append(piece)
            start, table = end, self._inside
        return pieces
