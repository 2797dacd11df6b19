"""How long a page of a wiki takes to parse, estimated from the openings in it that never close.

Where something never closes, the parser reads to the end of the page before it takes the opening as text, and goes back
to try the text after it. A page with many of them takes time that grows with the square of its length, or worse.
"""

import re
from typing import NamedTuple

MAX_SECONDS = 10.0
"""Estimated time above which a page is left out."""
DEPTH = 100
"""Openings inside of one another that are looked through for the one that is closed; the parser gives up at 40."""
MAX_HEADING_MARKS = 1000
"""Equals signs in a line that begins with one: each is tried as the end of a heading, inside of the one before it."""
MAX_LINK = 10_000
"""Characters in which an external link has to end."""
SECONDS_PER_TOKEN = 3e-5
# Seconds for each character between an opening that nothing closes and the end of the page, measured.
TABLE, BRACES, CROSSED, BROKEN_TAG, TAG, LINK, EXTERNAL, COMMENT = 6e-7, 3e-7, 3e-7, 2e-7, 5e-8, 5e-8, 2e-8, 2e-8
OPENINGS = {"{{": (BRACES, "templates"), "{|": (TABLE, "tables"), "[[": (LINK, "links")}
CLOSINGS = {"}}": "{{", "|}": "{|", "]]": "[["}
_RAW = """categorytree ce chem gallery graph hiero imagemap inputbox math nowiki pre score source syntaxhighlight
    templatedata timeline"""
RAW = frozenset(_RAW.split())
"""Tags whose content is no markup."""
SINGLE = frozenset(("br", "wbr", "hr", "meta", "link", "img", "li", "dt", "dd", "th", "td", "tr"))
"""Tags that need no end."""
TOKEN = re.compile(
    r"\{\{|\}\}|\{\||\|\}|\[\[|\]\]|<!--|\[(?=//|[a-z]{3,9}:)|<(?P<close>/?)(?P<tag>[a-zA-Z]\w*)"
    r"(?P<rest>[^<>]*)(?P<end>>?)|^(?P<list>[*#:;]+|-{4,}|\||!)|\|\||!!",
    re.MULTILINE,
)


class _Open(NamedTuple):
    mark: str
    seconds: float
    """For each character up to the end of the page, if it is never closed."""
    kind: str
    start: int


def markup_excess(markup: str) -> str:
    """Return what makes a page too slow to parse; "" for every other one."""
    if any(line[:1] == "=" and line.count("=") > MAX_HEADING_MARKS for line in markup.split("\n")):
        return "a heading without end would take the parser's stack"
    total, kinds = _estimate(markup)
    if total <= MAX_SECONDS:
        return ""
    kind = max(kinds, key=kinds.__getitem__)
    return f"{kind} without end would take the parser minutes" if kind else "too much markup"


def _estimate(markup: str) -> tuple[float, dict[str, float]]:
    """Return the seconds that parsing may take, in all and by cause."""
    seconds: dict[str, float] = {"": 0.0}
    stack: list[_Open] = []
    length, position = len(markup), 0
    line_end = 0
    missing: set[str] = set()  # ends that do not come any more

    def spend(kind: str, rate: float, start: int) -> None:
        seconds[kind] = seconds.get(kind, 0.0) + rate * (length - start)

    def close(mark: str) -> None:
        # Whatever was opened inside of it and is not closed by now was in vain.
        if any(opened.mark == mark for opened in stack[-DEPTH:]):
            while (opened := stack.pop()).mark != mark:
                spend(opened.kind, max(opened.seconds, CROSSED), opened.start)

    while match := TOKEN.search(markup, position):
        start, position = match.span()
        mark, tag = match[0], (match["tag"] or "").lower()
        seconds[""] += SECONDS_PER_TOKEN * (len(match["list"]) if match["list"] else 1)
        end_mark = "-->" if mark == "<!--" else f"</{tag}>" if tag in RAW and not match["close"] else ""
        if end_mark and not match[0].endswith("/>"):
            end = -1 if end_mark in missing else markup.find(end_mark, position)
            if end < 0:
                missing.add(end_mark)
                spend("comments" if mark == "<!--" else "tags", COMMENT if mark == "<!--" else TAG, start)
            else:
                position = end + len(end_mark)
        elif mark in OPENINGS:
            stack.append(_Open(mark, *OPENINGS[mark], start))
        elif mark in CLOSINGS:
            close(CLOSINGS[mark])
        elif mark == "[":  # an external link ends with its line
            if line_end < position:
                line_end = markup.find("\n", position)
                line_end = length if line_end < 0 else line_end
            if markup.find("]", position, min(line_end, position + MAX_LINK)) < 0:
                spend("links", EXTERNAL, start)
        elif tag and not match["end"]:
            spend("tags", BROKEN_TAG, start)
        elif tag and match["close"]:
            close(tag)
        elif tag and tag not in SINGLE and not match["rest"].endswith("/"):
            stack.append(_Open(tag, TAG, f"tags <{tag}>", start))
    for opened in stack:
        spend(opened.kind, opened.seconds, opened.start)
    return sum(seconds.values()), seconds
