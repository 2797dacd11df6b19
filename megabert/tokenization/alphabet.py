"""The single characters of a vocabulary: all of the text's, unless they would crowd out the longer pieces."""

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from megabert.errors import DataError
from megabert.tokenization.backend import CONTINUATION

MIN_COVERAGE = 0.9995
"""Least share of a text's characters that a vocabulary must be able to write."""

# Pairs of a coverage and the largest share of the vocabulary that characters may take to reach it, tried in turn.
# All characters in half of it, 99.99% of the text in three quarters, 99.95% in all of it.
_POLICY = ((1.0, 0.5), (0.9999, 0.75), (MIN_COVERAGE, 1.0))

# Syllables, jamo, compatibility jamo, the two extended blocks and the half-width forms.
_HANGUL = re.compile("[\uac00-\ud7af\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\ud7b0-\ud7ff\uffa0-\uffdc]")


@dataclass(frozen=True, kw_only=True)
class Alphabet:
    """Single-character pieces, each in code point order."""

    initial: tuple[str, ...]
    """Every kept character, as the first piece of a word."""
    inside: tuple[str, ...]
    """The kept characters that occur in words of two characters or more, written with the continuation prefix."""
    coverage: float
    """Share of the counted characters that are kept."""


def has_hangul(text: str) -> bool:
    """Tell whether a text has Hangul, composed or not."""
    return _HANGUL.search(text) is not None


def compose(text: str) -> str:
    """Bring a text into the composed Unicode form (NFC)."""
    return text if unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)


def choose_alphabet(words: Mapping[str, int], capacity: int) -> Alphabet:
    """Choose the single-character pieces for a vocabulary.

    All characters are kept if they take at most half of the vocabulary. Otherwise the most frequent ones are kept, as
    many as reach 99.99% of the text, or 99.95% if no more fit.

    Args:
        words: Number of occurrences of each word.
        capacity: Number of pieces in the vocabulary, special ones not counted.

    Raises:
        DataError: Even the characters of 99.95% of the text do not fit.
    """
    counts: Counter[str] = Counter()
    inside: set[str] = set()
    for word, occurrences in words.items():
        for character in word:
            counts[character] += occurrences
        if len(word) > 1:
            # The first character as well: a new text may have it inside a word, which would otherwise be unknown.
            inside.update(word)
    # Equally frequent characters are ranked by code point, so that the same text gives the same alphabet.
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    total = max(sum(counts.values()), 1)
    for coverage, share in _POLICY:
        kept = _most_frequent(ranked, counts, coverage * total)
        size = len(kept) + sum(character in inside for character in kept)
        if size <= capacity * share:
            return Alphabet(
                initial=tuple(sorted(kept)),
                inside=tuple(CONTINUATION + character for character in sorted(inside.intersection(kept))),
                coverage=sum(counts[character] for character in kept) / total,
            )
    raise DataError(
        f"vocabulary: {len(kept):,} different characters make up {MIN_COVERAGE:.2%} of the text and need {size:,} "
        f"single-character pieces; vocab_size leaves room for {capacity:,}. Raise vocab_size to {2 * size:,} or more, "
        "or remove text in other scripts."
    )


def _most_frequent(ranked: list[str], counts: Mapping[str, int], wanted: float) -> list[str]:
    reached = 0
    for number, character in enumerate(ranked):
        if reached >= wanted:
            return ranked[:number]
        reached += counts[character]
    return ranked
