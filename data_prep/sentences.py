"""Cutting paragraphs into sentences: an interface, and the library behind it."""

from typing import Protocol

import sentencex


class SentenceSplitter(Protocol):
    """Cuts text into sentences."""

    def split_paragraphs(self, paragraphs: list[str]) -> list[str]:
        """Return the sentences of paragraphs in order, none blank, none over the end of a paragraph.

        White space may stay at their ends.
        """
        ...


class SentencexSplitter:
    """The rules of the Wikimedia Foundation's ``sentencex``, for about 240 languages."""

    def __init__(self, language: str) -> None:
        """Choose the rules.

        Args:
            language: ISO 639-1 code; one that the library has no rules for falls back to a related one.
        """
        self._language = language

    def split_paragraphs(self, paragraphs: list[str]) -> list[str]:
        """Return the sentences of paragraphs in order, none blank, none over the end of a paragraph."""
        language, segment = self._language, sentencex.segment
        return [part for text in paragraphs for part in segment(language, text) if not part.isspace()]


def make_splitter(language: str) -> SentenceSplitter:
    """Return the splitter for a language."""
    return SentencexSplitter(language)
