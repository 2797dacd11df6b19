"""The composed form of Unicode text (NFC), and whether a text has Hangul, whose syllables that form keeps whole."""

import re
import unicodedata

# Syllables, jamo, compatibility jamo, the two extended blocks and the half-width forms.
_HANGUL = re.compile("[\uac00-\ud7af\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\ud7b0-\ud7ff\uffa0-\uffdc]")


def has_hangul(text: str) -> bool:
    """Tell whether a text has Hangul, composed or not."""
    return _HANGUL.search(text) is not None


def compose(text: str) -> str:
    """Bring a text into the composed Unicode form (NFC)."""
    return text if text.isascii() or unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)
