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


_JAMO_INSIDE = re.compile("[\u1160-\u11ff\ud7b0-\ud7ff]")
"""Vowels and finals of Hangul, which follow the first letter of their syllable."""


def past_marks(text: str, end: int) -> int:
    """Return where a part of a text ends with the rest of its last character: accents, which an uncased tokenizer
    drops, and of a decomposed syllable the vowel and the final.
    """
    while end < len(text) and (unicodedata.combining(text[end]) or _JAMO_INSIDE.match(text[end])):
        end += 1
    return end
