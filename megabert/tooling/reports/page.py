"""One page of pictures and tables: an HTML file that holds everything, loads nothing, and follows light and dark."""

import base64
import html
from collections.abc import Iterable
from pathlib import Path

from megabert.foundation.files import read_small

_PAGE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<style>
:root {{ color-scheme: light dark; --ink: #222; --paper: #fff; --shade: #f6f6f6 }}
body {{ font: 15px/1.45 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }}
body {{ color: var(--ink); background: var(--paper) }}
img {{ width: 100%; height: auto }}
pre {{ background: var(--shade); padding: .8rem; overflow-x: auto; font-size: 13px }}
h1 {{ font-size: 1.4rem; overflow-wrap: anywhere }}
h2 {{ font-size: 1.1rem; margin-top: 2rem }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #ddd; --paper: #161616; --shade: #232323 }}
  /* The pictures are drawn on white: their lightness is turned over, their hues stay. */
  img {{ filter: invert(.914) hue-rotate(180deg) }}
}}
</style></head><body>
<h1>{heading}</h1>
{parts}
</body></html>
"""


def render_page(folder: Path, parts: Iterable[str]) -> str:
    """Return the page about a folder as HTML.

    Args:
        folder: The folder that the title names.
        parts: HTML from ``image``, ``section`` and ``folded``.
    """
    return _PAGE.format(
        title=html.escape(folder.name), heading=html.escape(str(folder)), parts="\n".join(filter(None, parts))
    )


def image(about: str, picture: bytes) -> str:
    """Return a PNG as a part of the page.

    Args:
        about: A description for readers who do not see it.
        picture: The PNG.
    """
    return f'<img alt="{about}" src="data:image/png;base64,{base64.b64encode(picture).decode("ascii")}">'


def section(title: str, text: str, picture: str = "") -> str:
    """Return a titled table or other plain text, with a picture from ``image`` above it."""
    return f"<h2>{html.escape(title)}</h2>\n{picture}<pre>{html.escape(text)}</pre>"


def folded(path: Path) -> str:
    """Return a file that a click unfolds; nothing if there is none."""
    if not path.is_file():
        return ""
    text = html.escape(read_small(path).decode(errors="replace"))
    return f"<details><summary>{html.escape(path.name)}</summary><pre>{text}</pre></details>"
