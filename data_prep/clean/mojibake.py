"""Text that was UTF-8 and was read as a single-byte code page: undone where that is exact, never guessed."""

import re
from functools import cache

# What frequent UTF-8 sequences look like as windows-1252 or latin-1: accents, quotes and dashes, emoji, U+FFFD.
SIGNS = re.compile(
    "[\u00c2\u00c3][\u0080-\u00bf]|\u00e2\u20ac.|\u00e2\u0080[\u0080-\u00bf]|\u00ef\u00bf\u00bd|\u00f0[\u0178\u009f]"
)
_SPECIALS = "".join(bytes([byte]).decode("cp1252", "ignore") for byte in range(0x80, 0xA0))
PAIR = re.compile(f"[\u00c2-\u00f4][\u0080-\u00bf{_SPECIALS}]")
"""What any sequence of two bytes or more looks like; without one a text is as it should be."""
MANY = 3
MAX_ROUNDS = 3
# Letters that text in no common language has; a wrong repair ends up there (E with acute, then a dash: U+0257).
RARE = re.compile("[\u0180-\u02af]")


def repair(text: str) -> str | None:
    """Undo a wrong decoding.

    Args:
        text: A paragraph.

    Returns:
        The text as it was meant; ``text`` itself where nothing speaks for a wrong decoding; None where something
        does but it cannot be undone exactly.
    """
    for _ in range(MAX_ROUNDS):
        if PAIR.search(text) is None:
            return text
        is_marked = SIGNS.search(text) is not None
        found = _undo(text)
        if found is None:
            return None if is_marked else text
        if not is_marked and (sum(character > "\x7f" for character in found) < MANY or RARE.search(found)):
            return text
        text = found
    return None


def _undo(text: str) -> str | None:
    """Return what UTF-8 makes of the text's bytes in one of the code pages, None if it makes nothing."""
    for table in _tables():
        try:
            data = bytes(table[character] for character in text)
            return data.decode("utf-8")
        except (KeyError, UnicodeDecodeError):
            continue
    return None


@cache
def _tables() -> tuple[dict[str, int], ...]:
    """Bytes by character: windows-1252 as browsers have it (undefined bytes are controls), and latin-1."""
    browser = {bytes([byte]).decode("cp1252", "replace"): byte for byte in range(256)}
    browser |= {chr(byte): byte for byte in (0x81, 0x8D, 0x8F, 0x90, 0x9D)}
    del browser["\ufffd"]
    return browser, {chr(byte): byte for byte in range(256)}
