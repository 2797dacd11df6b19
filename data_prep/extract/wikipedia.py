"""Articles of a Wikipedia dump: pages of the main namespace that are no redirects, without their markup.

Pages are found by patterns: a chunk begins in the middle of the file, where no XML parser can.
"""

import html
import re
from collections.abc import Iterator
from functools import lru_cache

from data_prep.extract.opening import BLOCK_BYTES, InputChunk, InputFile, content_blocks
from data_prep.extract.problems import Problems
from data_prep.extract.text import Document, chunk_blocks, grouped
from data_prep.extract.wikitext import Site, plain_text

NAMESPACE = re.compile(r'<namespace key="(-?\d+)"[^>]*>([^<]+)</namespace>')
PAGE = re.compile(rb"<page>(.*?)(</page>|\Z)", re.DOTALL)
TITLE = re.compile(r"<title>(.*?)</title>", re.DOTALL)
PAGE_NAMESPACE = re.compile(r"<ns>(-?\d+)</ns>")
TEXT = re.compile(r"<text\b[^>]*>(.*?)</text>", re.DOTALL)
REDIRECT = re.compile(r"<redirect\b|<text\b[^>]*>\s*#\s*[^\W\d_]+[^\[\n]{0,20}\[\[", re.IGNORECASE)
FILE_NAMESPACE, CATEGORY_NAMESPACE = 6, 14
"""Numbers that all wikis give these namespaces."""


def wikipedia_documents(chunk: InputChunk, problems: Problems) -> Iterator[Document]:
    """Yield the articles of a part of a dump; what is left out is counted."""
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
    """Return the text of a page, or None where it is no article."""
    title_match = TITLE.search(page)
    title = html.unescape(title_match[1]) if title_match else ""
    namespace = PAGE_NAMESPACE.search(page)
    # Old dumps do not number the namespace. There the prefix of the title tells it.
    is_article = namespace[1] == "0" if namespace else title.partition(":")[0].lower() not in site.namespaces
    if not is_article:
        problems.count("pages_of_other_namespaces")
        return None
    if REDIRECT.search(page):
        problems.count("redirects")
        return None
    content = TEXT.search(page)
    problems.count("articles")
    if content is None:
        return ""
    try:
        return plain_text(html.unescape(content[1]), site)
    except Exception as error:  # the parser's own errors, and RecursionError
        problems.add("unparsable_pages", f"{origin}: {title!r} ({type(error).__name__}: {error})")
        return None


@lru_cache(maxsize=4)
def _site(file: InputFile) -> Site:
    """Read the names of namespaces from the head of a dump, once a process; later parts of a dump may have no head."""
    head = b""
    for block in content_blocks(file, Problems()):
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
