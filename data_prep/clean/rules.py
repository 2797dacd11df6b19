"""The cleaning rules, each a small function of a document or a paragraph."""

import re

# Controls, zero-width and direction characters. Line breaks and tabs are not among them, nor are the joiners U+200C and
# U+200D, which belong to Persian and Indic words.
CONTROLS = re.compile(
    "[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\xad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb]"
)
BOILERPLATE = re.compile(
    r"""[\W\d_]+                                                            # no letter at all
    | .{0,40}\ball\ rights\ reserved\b.{0,40} | (copyright\b|\(c\)|\u00a9).{0,100}
    | .{0,60}\b(uses?|using)\ cookies\b.{0,200} | accept\ (all\ )?cookies\W*
    | .{0,60}\bjavascript\b.{0,30}\b(disabled|enabled|enable|required)\b.{0,60} | .{0,20}enable\ javascript.{0,60}
    | (click\ here|read\ more|share\ this|log\ ?in|sign\ (in|up)|subscribe|print|e-?mail|next|previous|home|menu)\W*
    | (terms\ of\ (use|service)|privacy\ policy|contact\ us|about\ us|back\ to\ top|skip\ to\ (main\ )?content)\W*
    | page\ \d+(\ of\ \d+)?\W* | \*{3}\ ?(start|end)\ of\ .{0,200}
    """,
    re.IGNORECASE | re.VERBOSE,
)

_ASCII_CONTROLS = bytes(byte for byte in range(128) if CONTROLS.match(chr(byte)))


def paragraphs_of(text: str) -> list[str]:
    """Return the lines of a text that hold something, stripped."""
    return list(filter(None, map(str.strip, text.splitlines())))


def find_controls(text: str) -> re.Match[str] | None:
    """Find the first control, zero-width or direction character."""
    if text.isascii():
        # Deleting controls from bytes and comparing lengths is three times as fast as searching with the pattern.
        data = text.encode()
        if len(data.translate(None, _ASCII_CONTROLS)) == len(data):
            return None
    return CONTROLS.search(text)


def remove_controls(text: str) -> str:
    """Return a text without control, zero-width and direction characters."""
    return CONTROLS.sub("", text)


def is_boilerplate(paragraph: str, own: re.Pattern[str] | None) -> bool:
    """Return whether a paragraph belongs to a web page and not to its text.

    Args:
        paragraph: One line.
        own: Further patterns of the user.
    """
    if len(paragraph) <= 320 and BOILERPLATE.fullmatch(paragraph):
        return True
    return own is not None and own.search(paragraph) is not None


def without_repeats(paragraphs: list[str]) -> list[str]:
    """Return the paragraphs that differ from the previous one."""
    return [line for index, line in enumerate(paragraphs) if index == 0 or line != paragraphs[index - 1]]


def repeated_share(paragraphs: list[str]) -> float:
    """Return the share of characters in paragraphs that occurred before in the document (Rae et al. 2021, Table A1)."""
    total = sum(map(len, paragraphs))
    return 1 - sum(map(len, set(paragraphs))) / total if total else 0.0
