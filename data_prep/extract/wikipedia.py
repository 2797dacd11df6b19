"""Articles of a Wikipedia dump: pages of the main namespace that are no redirects, without their markup.

Pages are found by patterns: a chunk begins in the middle of the file, which no XML parser can read. Of their markup
prose is kept; templates, tables, lists, headers, references and pictures are not.

How long a page takes to parse is estimated first, from the openings in it that never close. Where something never
closes, the parser reads to the end of the page before it takes the opening as text, and goes back to try the text after
it. A page with many of them takes time that grows with the square of its length, or worse.
"""

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from data_prep.execution.records import Problems
from data_prep.extract.opening import BLOCK_BYTES, InputChunk, InputFile, content_blocks
from data_prep.extract.text import Document, chunk_blocks, grouped
from megabert.foundation.errors import ConfigError

MAX_SECONDS = 10.0
"""Estimated time above which a page is left out."""
DEPTH = 100
"""Nested openings that are searched when one of them is closed; the parser gives up at 40."""
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

NAMESPACE = re.compile(r'<namespace key="(-?\d{1,9})"[^<>]*>([^<]+)</namespace>')
PAGE = re.compile(rb"<page>(.*?)(</page>|\Z)", re.DOTALL)
PAGE_NAMESPACE = re.compile(r"<ns>(-?\d+)</ns>")
REDIRECT = re.compile(r"<redirect\b", re.IGNORECASE)
REDIRECT_TEXT = re.compile(r"\s*#\s*[^\W\d_]+[^\[\n]{0,20}\[\[")
FILE_NAMESPACE, CATEGORY_NAMESPACE = 6, 14
"""Numbers that all wikis give these namespaces."""
_PROSE_TAGS = """abbr b bdi big blockquote center cite del div em font i ins noinclude nowiki onlyinclude p poem q s
    small span strong sub sup tt u var"""
PROSE_TAGS = frozenset(_PROSE_TAGS.split())
"""Tags whose content is kept. The content of all other tags is dropped."""
_NAMESPACES = """talk,user,user talk,wikipedia,wikipedia talk,image,image talk,file,file talk,mediawiki,mediawiki talk,\
template,template talk,help,help talk,category,category talk,portal,portal talk,media,special,module,draft"""
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
_CODE = r"[a-z]{2,3}(?:-[a-z]+)*"
_FLAG = rf"\s*(?:[A-Z-]|{_CODE})\s*"
VARIANTS = re.compile(rf"-\{{(?!\{{)({_FLAG}(?:;{_FLAG})*\|)?((?:[^{{}}]|\{{\{{[^{{}}]*\}}\}})*)\}}-")
"""The markup of a wiki in several scripts: ``-{flags|zh-hans:one; zh-hant:other}-``, or text that is not converted."""
FIRST_VARIANT = re.compile(rf"\s*{_CODE}\s*:(.*?)(?:;\s*(?:{_CODE}\s*:.*)?)?", re.DOTALL)
HIDDEN_FLAGS = re.compile(r"[HTN-]")
"""Flags of variants whose text is not shown: a rule for the page, its title, the name of a script, a rule's end."""
INTERLANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z-]+)?|simple")


@dataclass(frozen=True)
class Site:
    """Names of namespaces that a wiki uses in titles and links."""

    namespaces: frozenset[str] = frozenset(_NAMESPACES.split(","))
    """Prefixes of titles that are no articles, in lower case."""
    dropped: frozenset[str] = frozenset(("file", "image", "category", "media"))
    """Prefixes of links that show no text."""


def wikipedia_documents(chunk: InputChunk, problems: Problems) -> Iterator[Document]:
    """Yield the articles of a part of a dump, and count the pages that are left out."""
    path = chunk.file.path
    site = _site(chunk.file)
    start, blocks = chunk_blocks(chunk, problems)
    for offset, data in grouped(chunk, start, blocks, problems):
        for match in PAGE.finditer(data):
            position = offset + match.start()
            if not match[2]:
                problems.add("cut_pages", f"{path}: the page at byte {position} has no end")
                continue
            text = _article(match[1].decode("utf-8", "replace"), site, problems, f"{path}: byte {position}")
            if text is not None:
                yield position, text


def _article(page: str, site: Site, problems: Problems, origin: str) -> str | None:
    """Return the text of a page, or None if it is no article."""
    title = html.unescape(_element(page, "title") or "")
    namespace = PAGE_NAMESPACE.search(page)
    # Old dumps do not number the namespace. There the prefix of the title tells it.
    is_article = namespace[1] == "0" if namespace else title.partition(":")[0].lower() not in site.namespaces
    if not is_article:
        problems.count("pages_of_other_namespaces")
        return None
    # Pages of a history have several revisions, the newest last.
    content = _element(page.rpartition("<revision>")[2], "text")
    # Dumps that number the namespace mark redirects as well; there a text may begin with a list whose item has a link.
    if REDIRECT.search(page) or (namespace is None and content is not None and REDIRECT_TEXT.match(content)):
        problems.count("redirects")
        return None
    problems.count("articles")
    if content is None:
        return ""
    markup = html.unescape(content)
    if excess := markup_excess(markup):
        problems.add("excessive_documents", f"{origin}: {title!r}: {excess}")
        return None
    try:
        return plain_text(markup, site)
    except Exception as error:  # the parser's own errors, and RecursionError
        problems.add("unparsable_pages", f"{origin}: {title!r} ({type(error).__name__}: {error})")
        return None


def _element(page: str, name: str) -> str | None:
    """Return the content of the first element of a name, as in the file; None if it is empty or not closed."""
    # No pattern: one that fails tries every begin of an element again, to the end of the page.
    tag = re.search(rf"<{name}\b", page)
    start = page.find(">", tag.end()) + 1 if tag else 0
    is_empty = not start or page[start - 2] == "/"
    end = -1 if is_empty else page.find(f"</{name}>", start)
    return page[start:end] if end >= 0 else None


@lru_cache(maxsize=4)
def _site(file: InputFile) -> Site:
    """Read the names of namespaces from the head of a dump, once a process; later parts of a dump may have no head."""
    head = b""
    for block in content_blocks(file, Problems(is_strict=False)):  # damage shows where the pages are read
        head += block
        if b"</siteinfo>" in head or len(head) > BLOCK_BYTES:
            break
    names = [
        (int(key), html.unescape(name).lower()) for key, name in NAMESPACE.findall(head.decode("utf-8", "replace"))
    ]
    dropped = {name for key, name in names if key in (FILE_NAMESPACE, CATEGORY_NAMESPACE)}
    return Site(
        namespaces=frozenset(name for key, name in names if key) or Site.namespaces, dropped=Site.dropped | dropped
    )


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
    code = mwparserfromhell.parse(VARIANTS.sub(_variant, QUOTES.sub("", markup)), skip_style_tags=True)
    text = "".join(_texts(code.nodes, site))
    return "\n".join(paragraph for line in text.split("\n") if (paragraph := _tidy(line)))


def _variant(match: re.Match[str]) -> str:
    """Return the first variant that is stated; nothing if none is shown."""
    flags, content = match[1] or "", match[2]
    if any(HIDDEN_FLAGS.fullmatch(flag.strip()) for flag in flags.rstrip("|").split(";")):
        return ""
    first = FIRST_VARIANT.fullmatch(content)
    return first[1].strip() if first else content


def _texts(nodes: Sequence[object], site: Site) -> Iterator[str]:
    """Yield the text of parsed nodes; kinds that are not named here (templates, comments, arguments) have none."""
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
    """Yield the text of a link; pictures, categories and links to other languages show none."""
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
