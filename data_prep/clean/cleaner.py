"""The rules in their order over one document, with counts and examples of what each dropped."""

import re
from collections.abc import Callable

from data_prep.clean.language import identify_language
from data_prep.clean.mojibake import PAIR, repair
from data_prep.clean.rules import find_controls, is_boilerplate, remove_controls, repeated_share, without_repeats
from data_prep.config import CleanConfig
from data_prep.extract.problems import EXAMPLES, MAX_EXAMPLE_CHARACTERS
from data_prep.extract.readers import paragraphs_of
from megabert.tokenization import compose

IsDuplicate = Callable[[str], bool]


class Cleaner:
    """Cleans the documents of one unit of reading."""

    def __init__(self, config: CleanConfig, is_duplicate: IsDuplicate | None = None) -> None:
        """Prepare.

        Args:
            config: Which rules, and their bounds.
            is_duplicate: Whether a paragraph occurred before, for the rule ``duplicate_paragraphs``.
        """
        self._config = config
        self._rules = frozenset(config.rules)
        self._own = re.compile("|".join(f"(?:{p})" for p in config.boilerplate)) if config.boilerplate else None
        self._is_duplicate = is_duplicate
        self.counts: dict[str, dict[str, int]] = {}
        """By rule: documents, paragraphs, characters that it dropped or changed."""
        self.examples: dict[str, list[str]] = {}

    def clean(self, text: str, place: str) -> list[str] | None:
        """Return the paragraphs of a document, perhaps none; None if a rule dropped the document.

        Args:
            text: As it stands in the file.
            place: For examples.
        """
        rules = self._rules
        if "mojibake" in rules and not text.isascii() and PAIR.search(text):
            text = self._repair(text, place)
        if "control_characters" in rules and (found := find_controls(text)):
            cleaned = remove_controls(text)
            around = text[max(0, found.start() - 30) : found.end() + 30]
            self._count("control_characters", around, place, characters=len(text) - len(cleaned))
            text = cleaned
        paragraphs = paragraphs_of(compose(text))
        if "boilerplate" in rules:
            kept = [line for line in paragraphs if not is_boilerplate(line, self._own)]
            paragraphs = self._shorter("boilerplate", paragraphs, kept, place)
        if "repeated_lines" in rules:
            if repeated_share(paragraphs) > self._config.max_repeated_share:
                self._drop("repeated_lines", paragraphs, place)
                return None
            paragraphs = self._shorter("repeated_lines", paragraphs, without_repeats(paragraphs), place)
        if "duplicate_paragraphs" in rules and self._is_duplicate is not None:
            kept = [line for line in paragraphs if not self._is_duplicate(line)]
            paragraphs = self._shorter("duplicate_paragraphs", paragraphs, kept, place)
        if "length" in rules and paragraphs:
            characters = sum(map(len, paragraphs))
            if not self._config.min_characters <= characters <= self._config.max_characters:
                self._drop("length", paragraphs, place)
                return None
        if (
            "language" in rules
            and paragraphs
            and identify_language("\n".join(paragraphs)) not in self._config.languages
        ):
            self._drop("language", paragraphs, place)
            return None
        return paragraphs

    def _repair(self, text: str, place: str) -> str:
        lines = text.split("\n")
        kept = []
        for line in lines:
            repaired = repair(line)
            if repaired is None:
                self._count("mojibake_dropped", line, place, paragraphs=1, characters=len(line))
                continue
            if repaired != line:
                self._count("mojibake_repaired", line, place, paragraphs=1)
            kept.append(repaired)
        return "\n".join(kept)

    def _shorter(self, rule: str, before: list[str], after: list[str], place: str) -> list[str]:
        if len(after) < len(before):
            lost = sum(map(len, before)) - sum(map(len, after))
            kept = set(after)
            example = next((line for line in before if line not in kept), before[0])
            self._count(rule, example, place, paragraphs=len(before) - len(after), characters=lost)
        return after

    def _drop(self, rule: str, paragraphs: list[str], place: str) -> None:
        self._count(rule, " / ".join(paragraphs), place, documents=1, characters=sum(map(len, paragraphs)))

    def _count(self, rule: str, example: str, place: str, **amounts: int) -> None:
        counts = self.counts.setdefault(rule, {})
        for name, amount in amounts.items():
            counts[name] = counts.get(name, 0) + amount
        examples = self.examples.setdefault(rule, [])
        if len(examples) < EXAMPLES:
            examples.append(f"{place}: {example!r}"[:MAX_EXAMPLE_CHARACTERS])
