"""Cutting paragraphs into sentences: an interface, and the library behind it."""

from typing import Protocol

import sentencex


class SentenceSplitter(Protocol):
    """Cuts text into sentences."""

    def split(self, paragraph: str) -> list[str]:
        """Return the sentences of a paragraph in order, stripped, none empty."""
        ...

    def split_paragraphs(self, paragraphs: list[str]) -> list[str]:
        """Return the sentences of several paragraphs; none goes over the end of one."""
        ...


class SentencexSplitter:
    """The rules of the Wikimedia Foundation's ``sentencex``, for about 240 languages."""

    def __init__(self, language: str) -> None:
        """Choose the rules.

        Args:
            language: ISO 639-1 code; one that the library has no rules for falls back to a related one.
        """
        self._language = language

    def split(self, paragraph: str) -> list[str]:
        """Return the sentences of a paragraph in order, stripped, none empty."""
        return [stripped for part in sentencex.segment(self._language, paragraph) if (stripped := part.strip())]

    def split_paragraphs(self, paragraphs: list[str]) -> list[str]:
        """Return the sentences of several paragraphs; none goes over the end of one."""
        return [sentence for paragraph in paragraphs for sentence in self.split(paragraph)]


def make_splitter(language: str) -> SentenceSplitter:
    """Return the splitter for a language."""
    return SentencexSplitter(language)
