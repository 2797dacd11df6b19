"""Mojibake, UTF-8 that was decoded as a single-byte code page: how it is found and undone."""

import re

# Mojibake: how frequent UTF-8 sequences look in windows-1252 or latin-1: accents, quotes and dashes, U+FFFD, emoji.
SIGNS = re.compile(
    "[\u00c2\u00c3][\u0080-\u00bf]|\u00e2\u20ac.|\u00e2\u0080[\u0080-\u00bf]|\u00ef\u00bf\u00bd|\u00f0[\u0178\u009f]"
)
_SPECIALS = "".join(bytes([byte]).decode("cp1252", "ignore") for byte in range(0x80, 0xA0))
PAIR = re.compile(f"[\u00c2-\u00f4][\u0080-\u00bf{_SPECIALS}]")
"""How any sequence of two bytes or more looks; a text without one is as it should be."""
_FIRST_OF_PAIR = "\u00c2".encode()[:1]
"""The first byte of every character that ``PAIR`` begins with, in UTF-8."""
# A word in capitals may end in such a letter before a mark that is no letter: "AMANH\u00c3\u00bb" in Portuguese. In a
# short word it may be either, so only what else is in the text can tell. A match begins where the letters do: from each
# of them on, the search would take the square of a long word's length.
CAPITALS = re.compile(
    "(?<![^\\W\\d_])([^\\W\\d_]{2,})[\u00a0\u00ab\u00bb" + "".join(c for c in _SPECIALS if not c.isalpha()) + "]"
)
SURE_CAPITALS = 3
MANY = 3
"""Characters beyond ASCII that a repair without any of ``SIGNS`` has to bring: less may be a coincidence."""
MAX_ROUNDS = 3
"""Wrong decodings of one text that are undone."""
# Letters that text in no common language has. A wrong repair ends up there: E with acute, then a dash, gives U+0257.
RARE = re.compile("[\u0180-\u02af]")
CODE_PAGES = tuple(
    {bytes([byte]).decode(name, "ignore") or chr(byte): byte for byte in range(256)} for name in ("cp1252", "latin-1")
)
"""Bytes by character: of windows-1252 as browsers read it (undefined bytes are controls), and of latin-1."""


def may_be_misread(text: str) -> bool:
    """Return whether anything in a text looks like mojibake; a byte is found faster than a pattern."""
    return _FIRST_OF_PAIR in text.encode() and PAIR.search(text) is not None


def repair(text: str) -> str | None:
    """Undo mojibake: UTF-8 that was decoded as a single-byte code page.

    The text is encoded in the code page again, and the bytes are decoded as UTF-8. That is kept only if it works for
    every character and something speaks for a wrong decoding; nothing is guessed.

    Args:
        text: A paragraph.

    Returns:
        The text as it was meant; ``text`` itself if nothing speaks for a wrong decoding; None if something does, but it
        cannot be undone exactly.
    """
    for _ in range(MAX_ROUNDS):
        if PAIR.search(text) is None:
            return text
        rest = _without_capitals(text, SURE_CAPITALS)
        if PAIR.search(rest) is None:
            return text
        is_marked = SIGNS.search(rest) is not None
        repaired = _undo(text)
        if repaired is None:
            return None if is_marked and SIGNS.search(_without_capitals(text, 2)) else text
        # Without a sure sign the text may be meant as it is; then the repair has to look like text, too.
        if not is_marked and (sum(character > "\x7f" for character in repaired) < MANY or RARE.search(repaired)):
            return text
        text = repaired
    return None


def _without_capitals(text: str, letters: int) -> str:
    """Return a text without words in capitals, of this number of letters or more, that are sound before a mark."""
    return CAPITALS.sub(lambda m: " " if len(m[1]) >= letters and m[1].isupper() else m[0], text)


def _undo(text: str) -> str | None:
    """Encode a text in one of the code pages and decode it as UTF-8; None if neither of them allows that."""
    for table in CODE_PAGES:
        try:
            return bytes(table[character] for character in text).decode("utf-8")
        except (KeyError, UnicodeDecodeError):
            continue
    return None
