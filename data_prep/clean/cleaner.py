"""The rules in their order over one document, with counts and examples of what each dropped."""

import re
from collections import Counter
from collections.abc import Callable
from itertools import groupby

from data_prep.clean.rules import (
    CONTROLS,
    PAIR,
    find_controls,
    identify_language,
    is_boilerplate,
    paragraphs_of,
    repair,
    repeated_share,
)
from data_prep.config import CleanConfig
from data_prep.extract.opening import Problems
from megabert.tokenization import compose

IsDuplicate = Callable[[str], bool]


class Cleaner:
    """Cleans the documents of one chunk."""

    def __init__(self, config: CleanConfig, problems: Problems, is_duplicate: IsDuplicate | None = None) -> None:
        """Prepare.

        Args:
            config: Which rules, and their bounds.
            problems: Takes the first texts that each rule dropped or changed as examples.
            is_duplicate: Tells whether a paragraph occurred before, for the rule ``duplicate_paragraphs``.
        """
        self._config = config
        self._rules = frozenset(config.rules)
        self._own = re.compile("|".join(f"(?:{p})" for p in config.boilerplate)) if config.boilerplate else None
        self._problems, self._is_duplicate = problems, is_duplicate
        self.counts: dict[str, Counter[str]] = {}
        """Documents, paragraphs and characters that each rule dropped or changed."""

    def clean(self, text: str, origin: str) -> list[str] | None:
        """Return the paragraphs of a document, perhaps none; None if a rule dropped the document.

        Args:
            text: The document as it is in the file.
            origin: File and position, for examples.
        """
        rules = self._rules
        # Rules on characters.
        if "mojibake" in rules and not text.isascii() and PAIR.search(text):
            text = self._repair(text, origin)
        if "control_characters" in rules and (control := find_controls(text)):
            cleaned = CONTROLS.sub("", text)
            around = text[max(0, control.start() - 30) : control.end() + 30]
            self._count("control_characters", around, origin, characters=len(text) - len(cleaned))
            text = cleaned
        # Rules on paragraphs. Unicode is composed first (NFC), so that equal texts are equal.
        paragraphs = paragraphs_of(compose(text))
        if "boilerplate" in rules:
            kept = [line for line in paragraphs if not is_boilerplate(line, self._own)]
            paragraphs = self._shorter("boilerplate", paragraphs, kept, origin)
        if "repeated_lines" in rules:
            if repeated_share(paragraphs) > self._config.max_repeated_share:
                self._drop("repeated_lines", paragraphs, origin)
                return None
            kept = [line for line, _ in groupby(paragraphs)]  # without those equal to the previous one
            paragraphs = self._shorter("repeated_lines", paragraphs, kept, origin)
        if "duplicate_paragraphs" in rules and self._is_duplicate is not None:
            kept = [line for line in paragraphs if not self._is_duplicate(line)]
            paragraphs = self._shorter("duplicate_paragraphs", paragraphs, kept, origin)
        # Rules on what is left of the document. One without text is no document of a wrong length or language.
        if paragraphs and (rule := self._misfit(paragraphs)):
            self._drop(rule, paragraphs, origin)
            return None
        return paragraphs

    def _misfit(self, paragraphs: list[str]) -> str:
        """Return the rule that drops a document as a whole, or ""."""
        config = self._config
        if "length" in self._rules:
            characters = sum(map(len, paragraphs))
            if not config.min_characters <= characters <= config.max_characters:
                return "length"
        if "language" in self._rules and identify_language("\n".join(paragraphs)) not in config.languages:
            return "language"
        return ""

    def _repair(self, text: str, origin: str) -> str:
        """Return a text with wrongly decoded lines repaired, and without those that cannot be."""
        lines = text.split("\n")
        kept = []
        for line in lines:
            repaired = repair(line)
            if repaired is None:
                self._count("mojibake_dropped", line, origin, paragraphs=1, characters=len(line))
                continue
            if repaired != line:
                self._count("mojibake_repaired", line, origin, paragraphs=1)
            kept.append(repaired)
        return "\n".join(kept)

    def _shorter(self, rule: str, before: list[str], after: list[str], origin: str) -> list[str]:
        """Return ``after``, and count what a rule took away from ``before``."""
        if len(after) < len(before):
            lost = sum(map(len, before)) - sum(map(len, after))
            kept = set(after)
            example = next((line for line in before if line not in kept), before[0])
            self._count(rule, example, origin, paragraphs=len(before) - len(after), characters=lost)
        return after

    def _drop(self, rule: str, paragraphs: list[str], origin: str) -> None:
        """Count a dropped document."""
        self._count(rule, " / ".join(paragraphs), origin, documents=1, characters=sum(map(len, paragraphs)))

    def _count(self, rule: str, example: str, origin: str, **amounts: int) -> None:
        self.counts.setdefault(rule, Counter()).update(amounts)
        self._problems.give_example(rule, f"{origin}: {example!r}")
