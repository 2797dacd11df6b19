"""Documents on which a library's time would grow with the square of their length: they are left out, and counted.

Nobody writes such text, but broken programs do. A bound depends on the text alone, never on a clock, so that slow
machines build the same bytes.
"""

import unicodedata

MAX_COMBINING = 500
"""Combining characters in a row. Unicode's stream-safe format allows 30; putting n in order takes n^2 steps (NFC)."""


def excess_of(text: str) -> str:
    """Return what makes a document too slow to process; "" for every other one."""
    if text.isascii():
        return ""
    # Any run of twice the stride has a whole stretch between two samples, so few characters are looked at.
    for start in range(0, len(text), MAX_COMBINING):
        if unicodedata.combining(text[start]):
            stretch = text[start : start + MAX_COMBINING]
            if len(stretch) == MAX_COMBINING and all(map(unicodedata.combining, stretch)):
                return f"more than {MAX_COMBINING} combining characters in a row"
    return ""
