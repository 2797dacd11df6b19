"""The texts that pieces of a vocabulary stand for, in one form for every kind of tokenizer: to compare and to read."""

from collections.abc import Iterable
from typing import NamedTuple

from megabert.tokenization.backend import BYTE_BPE, CONTINUATION, SPACE_BYTE, SPACE_MARK, WORDPIECE, byte_characters
from megabert.tokenization.tokenizer import Tokenizer


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


def written_pieces(tokenizer: Tokenizer) -> list[WrittenPiece]:
    """Return the text of each piece, in the order of the ids."""
    if tokenizer.kind is WORDPIECE:
        return [
            WrittenPiece(piece.removeprefix(CONTINUATION).encode(), not piece.startswith(CONTINUATION))
            for piece in tokenizer.pieces
        ]
    mark = SPACE_BYTE if tokenizer.kind is BYTE_BPE else SPACE_MARK
    to_bytes = {character: bytes([byte]) for byte, character in enumerate(byte_characters())}
    result = []
    for piece in tokenizer.pieces:
        text = piece.removeprefix(mark)
        is_bytes = tokenizer.kind is BYTE_BPE and all(character in to_bytes for character in text)
        encoded = b"".join(to_bytes[character] for character in text) if is_bytes else text.encode()
        result.append(WrittenPiece(encoded, piece.startswith(mark)))
    return result


def readable_pieces(tokenizer: Tokenizer, ids: Iterable[int]) -> list[str]:
    """Return pieces as people read them.

    WordPiece marks a piece that continues a word by ``##``, SentencePiece one that follows a space by U+2581.
    Byte-level BPE, which writes a character for each byte (three for a syllable of Hangul), is shown as text, marked
    like SentencePiece: a comma after a word is the piece ",", not the continuation of a word. Bytes that are no whole
    characters, or cannot be printed, are numbers.
    """
    pieces = [tokenizer.pieces[index] for index in ids]
    if tokenizer.kind is not BYTE_BPE:
        return pieces
    to_bytes = {character: byte for byte, character in enumerate(byte_characters())}
    readable = []
    for piece in pieces:
        text = piece.removeprefix(SPACE_BYTE)
        if piece in tokenizer.names or any(character not in to_bytes for character in text):
            readable.append(piece)
            continue
        encoded = bytes(to_bytes[character] for character in text)
        decoded = WrittenPiece(encoded, piece != text).decode() or ""
        is_text = not encoded or (decoded.strip() and decoded.isprintable())
        readable.append((SPACE_MARK if piece != text else "") + (decoded if is_text else f"<{encoded.hex(' ')}>"))
    return readable
