"""The language of a document, told by py3langid (Lui & Baldwin 2012): 97 languages, no download."""

from functools import cache
from typing import Any

from megabert.errors import ConfigError

SHOWN_CHARACTERS = 1000
"""Characters of a document's start that decide: more of them rarely change the answer, and take longer."""


def identify_language(text: str) -> str:
    """Return the ISO 639-1 code of a text's most likely language.

    Raises:
        ConfigError: The library is not installed.
    """
    return _identifier().classify(text[:SHOWN_CHARACTERS])[0]


@cache
def _identifier() -> Any:
    try:
        import py3langid
    except ImportError as error:
        raise ConfigError(
            "The cleaning rule `language` needs the package py3langid. Install it: pip install 'megabert[language]', "
            "or leave the rule out."
        ) from error
    return py3langid
