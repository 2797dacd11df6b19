"""Which characters beyond ASCII WordPiece's own loops encode, and how; all others are left to `tokenizers`."""

import unicodedata

import numpy as np
import tokenizers
from numpy.typing import NDArray

from megabert.tokens.tokenization.character_kinds import LETTER, OTHER, SINGLE
from megabert.tokens.tokenization.tokenizer_kinds import TextOptions

# Scripts whose letters, digits and marks BERT's normaliser leaves alone, or changes one by one.
_SCRIPTS = (
    *((0xC0, 0x24F), (0x370, 0x52F), (0x531, 0x586), (0x5D0, 0x5EA), (0x621, 0x64A)),  # Latin to Arabic
    *((0x900, 0xDFF), (0xE01, 0xEDF), (0xF40, 0xFBC), (0x1000, 0x10FF)),  # Devanagari to Georgian
    *((0x1200, 0x137F), (0x1780, 0x17D3), (0x1E00, 0x1FFF)),  # Ethiopic, Khmer, more Latin and Greek
    *((0x3041, 0x3096), (0x30A1, 0x30FA), (0x30FC, 0x30FE), (0xAC00, 0xD7A3)),  # kana, Hangul syllables
)
_IDEOGRAPHS = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF))
_MARKS = (
    *((0x2010, 0x2027), (0x2030, 0x205E), (0x3001, 0x3003), (0x3008, 0x3011), (0x3014, 0x301F), (0x3030, 0x3030)),
    *((0x30FB, 0x30FB), (0xFF01, 0xFF65)),
)
_MARK_CATEGORIES = frozenset(("Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po"))


def character_kinds(backend: tokenizers.Tokenizer, options: TextOptions) -> NDArray[np.uint8]:
    """Return the kind of each character up to U+FFFF for a tokenizer of BERT's with these options."""
    kinds = np.full(1 << 16, OTHER, np.uint8)
    letters = [chr(code) for first, last in _SCRIPTS for code in range(first, last + 1) if _stays(chr(code), options)]
    # The library has the last word: should it change one of them, or cut there, it encodes them all.
    joined = "".join(letters)
    if [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(joined))] == [
        joined
    ]:
        kinds[list(map(ord, letters))] = LETTER
    for first, last in _IDEOGRAPHS if options.tokenize_chinese_chars else ():
        kinds[first : last + 1] = SINGLE
    marks = [code for first, last in _MARKS for code in range(first, last + 1)]
    kinds[[code for code in marks if unicodedata.category(chr(code)) in _MARK_CATEGORIES]] = SINGLE
    return kinds


def _stays(character: str, options: TextOptions) -> bool:
    """Return whether a letter, digit or mark is as it was after the normaliser, whatever is around it."""
    category, text = unicodedata.category(character), character
    if category[0] not in "LNM" or (category[0] == "M" and (options.strip_accents or options.compose)):
        return False
    if options.strip_accents:
        text = "".join(part for part in unicodedata.normalize("NFD", text) if unicodedata.category(part) != "Mn")
    if options.do_lower_case:
        text = text.lower()
    if options.compose:
        text = unicodedata.normalize("NFC", text)
    return text == character
