"""The texts that pieces of a vocabulary stand for, in one form for every kind of tokenizer: to compare and to read."""

from collections.abc import Iterable
from typing import NamedTuple

from megabert.tokens.tokenization import tokenizer_kinds as kinds
from megabert.tokens.tokenization.tokenizer import Tokenizer


class WrittenPiece(NamedTuple):
    """The text of a piece, and whether it begins a word: ``##ing``, ``ing`` in byte-level BPE, ``ing`` in Unigram."""

    text: bytes
    """UTF-8; a piece of byte-level BPE may end within a character."""
    begins_word: bool

    def decode(self) -> str | None:
        """Return the text, or None if it is not whole characters."""
        try:
            return self.text.decode()
        except UnicodeDecodeError:
            return None


_BYTES = {character: byte for byte, character in enumerate(kinds.byte_characters())}


def _written(kind: kinds.Kind, piece: str) -> WrittenPiece:
    if kind is kinds.WORD_LEVEL:
        return WrittenPiece(piece.encode(), begins_word=True)
    if kind is kinds.WORDPIECE:
        text = piece.removeprefix(kinds.CONTINUATION)
        return WrittenPiece(text.encode(), begins_word=text == piece)
    text = piece.removeprefix(kinds.SPACE_BYTE if kind is kinds.BYTE_BPE else kinds.SPACE_MARK)
    is_bytes = kind is kinds.BYTE_BPE and all(character in _BYTES for character in text)
    encoded = bytes(_BYTES[character] for character in text) if is_bytes else text.encode()
    return WrittenPiece(encoded, begins_word=text != piece)


def written_pieces(tokenizer: Tokenizer) -> list[WrittenPiece]:
    """Return the text of each piece, in the order of the ids."""
    return [_written(tokenizer.kind, piece) for piece in tokenizer.pieces]


def readable_pieces(tokenizer: Tokenizer, ids: Iterable[int]) -> list[str]:
    """Return pieces as people read them.

    WordPiece marks a piece that continues a word by ``##``, SentencePiece one that follows a space by U+2581.
    Byte-level BPE, which writes a character for each byte (three for a syllable of Hangul), is shown as text, marked
    like SentencePiece: a comma after a word is the piece ",", not the continuation of a word. Bytes that are no whole
    characters, or cannot be printed, are numbers.
    """
    pieces = [tokenizer.pieces[index] for index in ids]
    if tokenizer.kind is not kinds.BYTE_BPE:
        return pieces
    readable = []
    for piece in pieces:
        if piece in tokenizer.names or any(character not in _BYTES for character in piece):
            readable.append(piece)
            continue
        written = _written(kinds.BYTE_BPE, piece)
        text = written.decode() or ""
        is_text = not written.text or (text.strip() and text.isprintable())
        readable.append(
            (kinds.SPACE_MARK if written.begins_word else "") + (text if is_text else f"<{written.text.hex(' ')}>")
        )
    return readable
