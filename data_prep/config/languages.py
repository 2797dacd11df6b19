"""The codes that a language may be named by.

The sentence splitter takes any word for a language, and cuts an unknown one as English, without a word: a German
text under ``de-DE`` or ``deu`` would end a sentence after each "bzw.". So a code is compared with these lists. They say
that it is a code, not that the splitter has rules for it. It has rules for about 30 languages, and cuts many
others as a related language (``lb`` as ``de``, ``ba`` as ``ru``). The rest, such as Korean, Swedish and Turkish, are
cut as English.

Models that identify languages have codes of their own, such as ``deu_Latn``; `code_of_label` reads them.
"""

import re

from megabert.settings.config.yaml_text import own_yaml

UNSPACED = "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]"
"""A character of Thai, Lao, Burmese, Khmer, Chinese or Japanese, which put no spaces between words."""
_CODES = {name: text.split() for name, text in own_yaml(__file__, "languages.yaml").items()}
WIKIPEDIA_CODES = frozenset(_CODES["wikipedia"])
"""Codes of Wikipedia for languages without two letters of their own, and for variants of a language."""

TWO_OF_THREE: dict[str, str] = dict(zip(_CODES["two_of_three"][::2], _CODES["two_of_three"][1::2], strict=True))
"""Codes of two letters for codes of three (ISO 639-3). A variety with a label of its own in models, such as Standard
Arabic or Iranian Persian, has the code of its language."""
ISO_639_1 = frozenset((*TWO_OF_THREE.values(), "bh", "lo", "mo", "nb"))
"""Two letters per language, which most have."""
KNOWN = ISO_639_1 | WIKIPEDIA_CODES
"""Codes that a language may be named by."""
_IDENTIFIED = {"zh-yue": "yue", "zh-min-nan": "nan", "zh-classical": "lzh", "simple": "en", "nb": "no"}
"""Codes for which models have another, quite different code. Cantonese is no variant of Mandarin (``zh``)."""
CODE_OF_NAME: dict[str, str] = dict(zip(_CODES["names"][::2], _CODES["names"][1::2], strict=True))
"""Codes for English names and for the bibliographic codes of ISO 639-2, which are suggested and not accepted."""
UNDETERMINED = "und"
"""Code of a text that no language can be told of (ISO 639-3)."""
AUTO = "auto"
"""Instead of a code: the language of each document is identified."""
# An ISO 639 code, perhaps with more after a hyphen as Wikipedia has it, and a script: deu_Latn, bat-smg, zh-Hans.
LABEL = re.compile(r"(?P<code>[a-z]{2,3}(?:-[a-z]+)*)(?P<script>[_-][A-Z][a-z]{3})?")


def code_of_label(label: str) -> str | None:
    """Return the code of a language that a model names in another way; None for a label that names no language.

    Args:
        label: Such as ``de``, ``deu_Latn`` or ``als``, which is Alemannic as a code of a Wikipedia, and Tosk Albanian
            with a script, as then it is a code of ISO 639-3.
    """
    match = LABEL.fullmatch(label)
    if match is None:
        return None
    code = match["code"]
    if not match["script"] and code in WIKIPEDIA_CODES:
        return code
    return identified_code(TWO_OF_THREE.get(code, code))


def is_language_label(label: str) -> bool:
    """Return whether a model's label surely names a language: its code is known, or it has a script, as ``dyu_Latn``.

    Words of two or three letters, such as ``pos`` and ``ham``, look like codes.
    """
    match = LABEL.fullmatch(label)
    return match is not None and (match["script"] is not None or code_of_label(label) in KNOWN)


def identified_code(code: str) -> str:
    """Return the code by which models know a language: ``pt`` for ``pt-br``, ``no`` for ``nb``; most have one code."""
    if code in _IDENTIFIED:
        return _IDENTIFIED[code]
    first = code.split("-")[0]
    return first if first in ISO_639_1 else code


def require_language(code: str, known: frozenset[str] = KNOWN) -> str:
    """Return a code that is known.

    Raises:
        ValueError: It is not; the message names the code that is likely meant, if there is one.
    """
    if code in known:
        return code
    first = code.lower().replace("_", "-").split("-")[0]
    # de of de-DE, sv of swe and of swedish; the first letters of a name would say Swahili
    likely = (first, TWO_OF_THREE.get(first, ""), CODE_OF_NAME.get(first, ""))
    near = next((name for name in likely if name in known), None)
    hint = f"; did you mean {near}?" if near else ", such as en, de or zh"
    raise ValueError(f"{code!r} is no language code of two letters (ISO 639-1) or of a Wikipedia{hint}")


def require_language_or_auto(code: str) -> str:
    """Return a code that is known, or ``auto``.

    Raises:
        ValueError: It is neither.
    """
    return code if code == AUTO else require_language(code)


def require_identifiable(code: str) -> str:
    """Return a code that is known, or one of three letters for a language without one of two.

    Raises:
        ValueError: It is neither. Whether the model knows it is checked when the model is read.
    """
    is_of_three = re.fullmatch("[a-z]{3}", code) and code not in TWO_OF_THREE
    return code if is_of_three else require_language(code)
