"""Which single characters a vocabulary holds: all of them, unless they would crowd out the longer pieces."""

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from megabert.errors import DataError
from megabert.tokenization.backend import CONTINUATION

MIN_COVERAGE = 0.9995
"""Least share of a text's characters that a vocabulary must be able to write."""

# (coverage to reach, most of the vocabulary that single characters may take for it), tried in turn.
_POLICY = ((1.0, 0.5), (0.9999, 0.75), (MIN_COVERAGE, 1.0))

# Syllables, jamo, compatibility jamo, the two extended blocks and the half-width forms.
_HANGUL = re.compile("[\uac00-\ud7af\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\ud7b0-\ud7ff\uffa0-\uffdc]")


@dataclass(frozen=True, kw_only=True)
class Alphabet:
    """Single-character pieces, each in code point order."""

    initial: tuple[str, ...]
    """Every kept character."""
    inside: tuple[str, ...]
    """Those seen in words of two characters or more, written with the continuation prefix."""
    coverage: float
    """Share of the counted characters that are kept."""


def has_hangul(text: str) -> bool:
    """Whether a text has Hangul, composed or not."""
    return _HANGUL.search(text) is not None


def compose(text: str) -> str:
    """Bring a text into the composed Unicode form (NFC)."""
    return text if unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)


def choose_alphabet(words: Mapping[str, int], capacity: int) -> Alphabet:
    """Choose the single-character pieces for a vocabulary.

    All characters are kept if they take half of the vocabulary at most; else the most frequent ones, which
    reach 99.99% of the text, or 99.95% where that is all that fits.

    Args:
        words: How often each word occurs.
        capacity: Pieces in the vocabulary, special ones not counted.

    Raises:
        DataError: Even 99.95% does not fit.
    """
    counts: Counter[str] = Counter()
    inside: set[str] = set()
    for word, occurrences in words.items():
        for character in word:
            counts[character] += occurrences
        if len(word) > 1:
            # The first character too: elsewhere it may stand inside a word, which would then be unknown.
            inside.update(word)
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
