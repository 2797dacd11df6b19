"""Which single characters a vocabulary has as pieces: all, unless they would crowd out the longer pieces."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import accumulate

from megabert.foundation.errors import DataError
from megabert.tokens.tokenization.tokenizer_kinds import CONTINUATION

MIN_COVERAGE = 0.9995
"""Least share of a text's characters that a vocabulary must be able to write."""

# Pairs of a coverage and the largest share of the vocabulary that characters may take to reach it, tried in turn.
# All characters in half of it, 99.99% of the text in three quarters, 99.95% in all of it.
_POLICY = ((1.0, 0.5), (0.9999, 0.75), (MIN_COVERAGE, 1.0))


def choose_alphabet(
    words: Iterable[tuple[str, int]], capacity: int, *, spare_pieces: int = 0
) -> tuple[list[str], list[str]]:
    """Choose the single-character pieces for a vocabulary.

    All characters are kept if they take at most half of the vocabulary. Otherwise the most frequent ones are kept, as
    many as reach 99.99% of the text, or 99.95% if no more fit.

    Args:
        words: How often each word occurs.
        capacity: Number of pieces in the vocabulary, special and spare ones not counted.
        spare_pieces: Number of spare ones, for the message of the error.

    Returns:
        The kept characters as first pieces of a word; and with the continuation prefix the ones among them that occur
        in words of two characters or more. Each in the order of code points.

    Raises:
        DataError: Even the characters of 99.95% of the text do not fit.
    """
    counts: Counter[str] = Counter()
    inside: set[str] = set()
    for word, occurrences in words:
        for character in word:
            counts[character] += occurrences
        if len(word) > 1:
            # The first character as well: a new text may have it inside a word, which would otherwise be unknown.
            inside.update(word)
    kept = choose_characters(counts, capacity, inside=inside, spare_pieces=spare_pieces)
    return sorted(kept), [CONTINUATION + character for character in sorted(inside.intersection(kept))]


def choose_characters(
    counts: Mapping[str, int], capacity: int, *, inside: Collection[str] = (), spare_pieces: int = 0
) -> list[str]:
    """Choose the characters that a vocabulary has as pieces, as `choose_alphabet` does, with the same errors.

    Args:
        counts: How often each character occurs.
        capacity: As for `choose_alphabet`.
        inside: Characters that take two pieces.
        spare_pieces: As for `choose_alphabet`.
    """
    # Equally frequent characters are ranked by code point, so that the same text gives the same alphabet.
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    covered = [0, *accumulate(counts[character] for character in ranked)]  # by the first 0, 1, 2, ... of them
    for coverage, share in _POLICY:
        kept = ranked[: bisect_left(covered, coverage * covered[-1])]
        size = len(kept) + sum(character in inside for character in kept)
        if size <= capacity * share:
            return kept
    spared = f" beside {spare_pieces:,} spare pieces" if spare_pieces else ""
    raise DataError(
        f"vocabulary: {len(kept):,} different characters make up {MIN_COVERAGE:.2%} of the text and need {size:,} "
        f"single-character pieces; vocab_size leaves room for {capacity:,}{spared}. Raise vocab_size to "
        f"{2 * size + spare_pieces:,} or more, or remove text in other scripts."
    )
