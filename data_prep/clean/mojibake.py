"""Mojibake: text in UTF-8 that was decoded as a single-byte code page. It is repaired where that is exact.

The repair encodes the text in the code page again and decodes the bytes as UTF-8. It is kept only where that works for
every character of a paragraph, and where something speaks for a wrong decoding; nothing is guessed.
"""

import re
from functools import cache

# How frequent UTF-8 sequences look in windows-1252 or latin-1: accents, quotes and dashes, U+FFFD, emoji.
SIGNS = re.compile(
    "[\u00c2\u00c3][\u0080-\u00bf]|\u00e2\u20ac.|\u00e2\u0080[\u0080-\u00bf]|\u00ef\u00bf\u00bd|\u00f0[\u0178\u009f]"
)
_SPECIALS = "".join(bytes([byte]).decode("cp1252", "ignore") for byte in range(0x80, 0xA0))
PAIR = re.compile(f"[\u00c2-\u00f4][\u0080-\u00bf{_SPECIALS}]")
"""How any sequence of two bytes or more looks; a text without one is as it should be."""
MANY = 3
"""Characters beyond ASCII that a repair without any of ``SIGNS`` has to bring: less may be a coincidence."""
MAX_ROUNDS = 3
"""Wrong decodings of one text that are undone."""
# Letters that text in no common language has. A wrong repair ends up there: E with acute, then a dash, gives U+0257.
RARE = re.compile("[\u0180-\u02af]")


def repair(text: str) -> str | None:
    """Undo a wrong decoding.

    Args:
        text: A paragraph.

    Returns:
        The text as it was meant; ``text`` itself where nothing speaks for a wrong decoding; None where something does,
        but it cannot be undone exactly.
    """
    for _ in range(MAX_ROUNDS):
        if PAIR.search(text) is None:
            return text
        is_marked = SIGNS.search(text) is not None
        repaired = _undo(text)
        if repaired is None:
            return None if is_marked else text
        # Without a sure sign the text may be meant as it is; then the repair has to look like text, too.
        if not is_marked and (sum(character > "\x7f" for character in repaired) < MANY or RARE.search(repaired)):
            return text
        text = repaired
    return None


def _undo(text: str) -> str | None:
    """Encode a text in one of the code pages and decode it as UTF-8; None if neither of them allows that."""
    for table in _tables():
        try:
            data = bytes(table[character] for character in text)
            return data.decode("utf-8")
        except (KeyError, UnicodeDecodeError):
            continue
    return None


@cache
def _tables() -> tuple[dict[str, int], ...]:
    """Return bytes by character: of windows-1252 as browsers read it (undefined bytes are controls), and of latin-1."""
    browser = {bytes([byte]).decode("cp1252", "replace"): byte for byte in range(256)}
    browser |= {chr(byte): byte for byte in (0x81, 0x8D, 0x8F, 0x90, 0x9D)}
    del browser["\ufffd"]
    return browser, {chr(byte): byte for byte in range(256)}
