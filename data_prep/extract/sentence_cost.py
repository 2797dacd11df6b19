"""How long the splitter of sentences takes for a long paragraph, told before it is called.

For each mark sentencex may search the whole paragraph: for the end of a quotation that never ends, or for the start of
a word that is as long as the paragraph. In text as people write it few marks do.
"""

import re

_PAIRS = "\u00ab\u00bb \u00bb\u00ab \u2018\u2019 \u201c\u201d \u201e\u201c \u2039\u203a \u300a\u300b \u300c\u300d"
QUOTES = (*((pair[0], pair[1]) for pair in _PAIRS.split()), ("``", "''"))
"""Opening and closing marks of sentencex that differ. Marks that do not differ close the mark before them."""
# The typewriter's marks are apostrophes as well: what may open and what may close depends on the letters around them.
SINGLE_OPENS, SINGLE_CLOSES = re.compile(r"(?<!\w)'"), re.compile(r"(?<=\S)'(?!\w)")
SINGLE_RUNS = re.compile(r"[`']{3,}")
MIN_CLOSED_SHARE = 0.5
FULL_STOPS = re.compile(r"[.!?]+")
COUNTING = 0.1
"""Share of a step that one character takes where marks are only counted."""
_FROM_THE_START = "it aae co egl eml fur lij lld lmo nap pms rgn roa-tara scn sdc sro vec"
FROM_THE_START = frozenset(_FROM_THE_START.split())
"""Languages in which each full stop takes all the text before it: Italian, and languages that fall back to it."""


def mark_steps(paragraph: str, most: int) -> float:
    """Return how many characters are searched for closing marks that do not come, about and at most.

    It is 0 for at most ``most`` marks in all, as nearly every paragraph has.
    """
    # The typewriter's marks count by themselves and, at most once more, as parts of a run.
    single, double = paragraph.count("`") + paragraph.count("'"), paragraph.count('"')
    if 2 * single + double + sum(paragraph.count(opening) for opening, _ in QUOTES) <= most:
        return 0
    length, steps = len(paragraph), 0.0
    for opening, closing in QUOTES:
        last = paragraph.rfind(closing) + 1
        steps += paragraph.count(opening, last) * (length - last)
    closed = [match.end() for match in SINGLE_CLOSES.finditer(paragraph)]
    last = closed[-1] if closed else 0
    steps += paragraph.count("`", last) * (length - last)
    opened = sum(1 for _ in SINGLE_OPENS.finditer(paragraph))
    if len(closed) < MIN_CLOSED_SHARE * opened:
        steps += opened * length
    # Marks of one kind are counted again after each one of another kind.
    steps += COUNTING * length * (min(double, opened) + min(paragraph.count("''"), max(double, opened)))
    return steps + length * sum(len(run) for run in SINGLE_RUNS.findall(paragraph))


def full_stop_steps(paragraph: str, language: str) -> float:
    """Return how many characters are read again for the full stops of a paragraph, without the long words' share."""
    if language not in FROM_THE_START:
        return 0
    return sum(1 for _ in FULL_STOPS.finditer(paragraph)) * len(paragraph) / 2
