"""Wiki markup to text: prose is kept; templates, tables, lists, headers, references and pictures are not."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from megabert.errors import ConfigError

_PROSE_TAGS = """abbr b bdi big blockquote center cite del div em font i ins noinclude nowiki onlyinclude p poem q s
    small span strong sub sup tt u var"""
_NAMESPACES = """talk,user,user talk,wikipedia,wikipedia talk,image,image talk,file,file talk,mediawiki,mediawiki talk,\
template,template talk,help,help talk,category,category talk,portal,portal talk,media,special,module,draft"""
PROSE_TAGS = frozenset(_PROSE_TAGS.split())
"""Tags whose content is kept; that of all others is dropped."""
LIST_TAGS = frozenset(("li", "dd", "dt"))
LIST_MARK = "\x00"
"""Stands for the begin of a list item until `_tidy` drops the line; text cannot hold it."""
QUOTES = re.compile(r"'{2,}")
SWITCH = re.compile(r"__[A-Z]{3,}__")
EMPTY_BRACKETS = re.compile(r" ?[(\[][\s,;:./]*[)\]]")
SPACES = re.compile(r"[ \t]{2,}|[\u00a0\u2009\u202f]+")
LINK_BRACKETS = re.compile(r"\[\[|\]\]")
REMAINS = frozenset("|!*#:;{}")
"""First characters of lines that are lists or rows of a table."""
SPACE_BEFORE_STOP = re.compile(r" +([,.;:!?])")
INTERLANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z-]+)?|simple")


@dataclass(frozen=True)
class Site:
    """Names of namespaces that a wiki uses in titles and links."""

    namespaces: frozenset[str] = frozenset(_NAMESPACES.split(","))
    """Prefixes of titles that are no articles, in lower case."""
    dropped: frozenset[str] = frozenset(("file", "image", "category", "media"))
    """Prefixes of links that show no text."""


def plain_text(markup: str, site: Site) -> str:
    """Return the prose of a page, one paragraph a line.

    Raises:
        ConfigError: The parser is not installed.
    """
    try:
        import mwparserfromhell
    except ImportError as error:
        raise ConfigError(
            "Reading Wikipedia dumps needs the package mwparserfromhell. Install it: pip install 'megabert[data]'."
        ) from error
    # Quotes of bold and italics are removed before: unbalanced ones are common, and slow to parse.
    code = mwparserfromhell.parse(QUOTES.sub("", markup), skip_style_tags=True)
    text = "".join(_texts(code.nodes, site))
    return "\n".join(paragraph for line in text.split("\n") if (paragraph := _tidy(line)))


def _texts(nodes: Sequence[object], site: Site) -> Iterator[str]:
    """Yield the text of parsed nodes; what is not named here (templates, comments, arguments) has none."""
    for node in nodes:
        kind = type(node).__name__
        if kind == "Text":
            yield node.value  # type: ignore[attr-defined]
        elif kind == "Wikilink":
            yield from _link(node, site)
        elif kind == "Tag":
            yield from _tag(node, site)
        elif kind == "ExternalLink":
            yield from _texts(node.title.nodes, site) if node.title else ()  # type: ignore[attr-defined]
        elif kind == "HTMLEntity":
            yield node.normalize()  # type: ignore[attr-defined]
        elif kind == "Heading":
            yield "\n"


def _link(node: object, site: Site) -> Iterator[str]:
    """Yield what a link shows; pictures, categories and links to other languages show no text."""
    title = str(node.title).strip()  # type: ignore[attr-defined]
    prefix, colon, _ = title.partition(":")
    prefix = prefix.strip().lower()
    if colon and prefix and (prefix in site.dropped or INTERLANGUAGE.fullmatch(prefix)):
        return
    shown = node.text  # type: ignore[attr-defined]
    if shown is None:
        yield title.lstrip(":")
    else:
        yield from _texts(shown.nodes, site)


def _tag(node: object, site: Site) -> Iterator[str]:
    """Yield the text inside of a tag of prose, and marks for list items and line breaks."""
    name = str(node.tag).strip().lower()  # type: ignore[attr-defined]
    if name in LIST_TAGS:
        yield LIST_MARK
    elif name in ("br", "hr"):
        yield " "
    elif name in PROSE_TAGS and node.contents is not None:  # type: ignore[attr-defined]
        yield from _texts(node.contents.nodes, site)  # type: ignore[attr-defined]


def _tidy(line: str) -> str:
    """Return a paragraph without the remains of dropped markup, and "" for a list item or a row of a table.

    Tables are dropped with their markup, but where the begin or the end of one is missing the parser leaves its rows.
    """
    if LIST_MARK in line or "||" in line or line.lstrip()[:1] in REMAINS:
        return ""
    line = LINK_BRACKETS.sub("", line)
    line = EMPTY_BRACKETS.sub("", SWITCH.sub("", line))
    return SPACE_BEFORE_STOP.sub(r"\1", SPACES.sub(" ", line)).strip()
