"""Figures of matplotlib as PNGs; slow to load, so a command imports this once it draws."""

import io
import logging
import warnings

from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.text import Text

logger = logging.getLogger(__name__)
CJK_FONTS = ("Noto Sans CJK KR", "NanumGothic", "Malgun Gothic")
"""Fonts with the letters that matplotlib's own lacks: of Linux twice, and of Windows."""
NAME_LENGTH = 40
"""A longer name of the user's is cut to its end, so that it leaves room for the picture."""


def png_of(figure: Figure, *, bbox_inches: str | None = None) -> bytes:
    """Return a figure as a PNG, with an installed font for Korean; if there is none, a sentence says so.

    Args:
        figure: The figure, whose texts get the fonts.
        bbox_inches: ``tight`` also shows legends outside of the figure; None keeps its size.
    """
    # Of a family that is not installed matplotlib warns, too.
    fonts = [name for name in CJK_FONTS if name in fontManager.get_font_names()]
    for text in figure.findobj(Text):
        text.set_fontfamily([*text.get_fontfamily(), *fonts])
    picture = io.BytesIO()
    with warnings.catch_warnings(record=True, action="always") as caught:  # one for each letter
        figure.savefig(picture, format="png", bbox_inches=bbox_inches)
    if any("missing from font" in str(one.message) for one in caught):
        logger.warning("A picture has letters that no font here has. Install one of: %s.", ", ".join(CJK_FONTS))
    return picture.getvalue()
