"""Documents on which a library's time would grow with the square of their length: they are left out, and counted.

Nobody writes such text, but broken programs do. Every bound depends on the text alone, never on a clock, so that slow
machines build the same bytes.
"""

import math
import re
import unicodedata

MAX_COMBINING = 500
"""Combining characters in a row. Unicode's stream-safe format allows 30; putting n in order takes n^2 steps (NFC)."""
MAX_QUOTE_STEPS = 500_000_000
"""Characters that sentencex may search for the ends of quotations that are never closed, about a second."""
QUOTES = (
    ("\u00ab", "\u00bb"),
    ("\u00bb", "\u00ab"),
    ("\u2018", "\u2019"),
    ("\u201c", "\u201d"),
    ("\u201e", "\u201c"),
    ("\u2039", "\u203a"),
    ("\u300a", "\u300b"),
    ("\u300c", "\u300d"),
    ("``", "''"),
)
"""Opening and closing marks of sentencex that differ; of those that do not, each closes the one before it."""
# The typewriter's marks are apostrophes as well: what may open and what may close depends on the letters around them.
SINGLE_OPENS, SINGLE_CLOSES = re.compile(r"(?<!\w)'"), re.compile(r"(?<=\S)'(?!\w)")
SINGLE_RUNS = re.compile(r"[`']{3,}")
MIN_CLOSED_SHARE = 0.5


def excess_of(text: str) -> str:
    """Return what makes a document too slow to process; "" for every other one."""
    if not text.isascii() and _has_long_run_of_marks(text):
        return f"more than {MAX_COMBINING} combining characters in a row"
    # Each mark of a paragraph may be searched for to the end of it, so short ones need no closer look. Nor do long ones
    # with few marks, which nearly all are.
    longest = math.isqrt(MAX_QUOTE_STEPS)
    if _has_long_line(text, longest):
        lines = text.splitlines()
        length = max(map(len, lines))
        is_suspect = length > longest and length * _marks(text) > MAX_QUOTE_STEPS
        if is_suspect and sum(map(_quote_steps, lines)) > MAX_QUOTE_STEPS:
            return "quotation marks that open again and again and never close"
    return ""


def _has_long_run_of_marks(text: str) -> bool:
    # Any run of twice the stride has a whole stretch between two samples, so few characters are looked at.
    for start in range(0, len(text), MAX_COMBINING):
        if unicodedata.combining(text[start]):
            stretch = text[start : start + MAX_COMBINING]
            if len(stretch) == MAX_COMBINING and all(map(unicodedata.combining, stretch)):
                return True
    return False


def _has_long_line(text: str, length: int) -> bool:
    """Return whether more than so many characters follow each other without a line feed."""
    # From one line feed to the last one that is near enough, so that few characters are looked at.
    start = 0
    while len(text) - start > length:
        end = text.rfind("\n", start, start + length + 1)
        if end < 0:
            return True
        start = end + 1
    return False


def _marks(text: str) -> int:
    """Return how many marks `_quote_steps` counts in a text, at most."""
    # The typewriter's marks count by themselves and, at most once more, as parts of a run.
    return sum(text.count(opening) for opening, _ in QUOTES) + 2 * (text.count("`") + text.count("'"))


def _quote_steps(paragraph: str) -> int:
    """Return how many characters are searched for closing marks that do not come, about and at most."""
    length, steps = len(paragraph), 0
    for opening, closing in QUOTES:
        last = paragraph.rfind(closing) + 1
        steps += paragraph.count(opening, last) * (length - last)
    closed = [match.end() for match in SINGLE_CLOSES.finditer(paragraph)]
    last = closed[-1] if closed else 0
    steps += paragraph.count("`", last) * (length - last)
    opened = sum(1 for _ in SINGLE_OPENS.finditer(paragraph))
    if len(closed) < MIN_CLOSED_SHARE * opened:
        steps += opened * length
    return steps + length * sum(len(run) for run in SINGLE_RUNS.findall(paragraph))
