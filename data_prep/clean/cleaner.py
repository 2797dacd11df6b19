"""The cleaning rules, and all of them in their order over a document; each is counted, with examples."""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from itertools import groupby

from data_prep.clean.mojibake import may_be_misread, repair
from data_prep.clean.quality import DOCUMENT_RULES, LINE_RULES, MASKS, Find, LineRule, Measured
from data_prep.config.cleaning import CleanConfig
from data_prep.execution.records import Problems
from megabert.tokens.tokenization import compose

# Controls, zero-width and direction characters. Line breaks and tabs are not among them, nor are the joiners U+200C and
# U+200D, which belong to Persian and Indic words.
CONTROLS = re.compile(
    "[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\xad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb]"
)
_ASCII_CONTROLS = bytes(byte for byte in range(0x80) if CONTROLS.match(chr(byte)))
BOILERPLATE = re.compile(
    r"""[\W\d_]+                                                            # no letter at all
    | .{0,40}\ball\ rights\ reserved\b.{0,40} | \u00a9.{0,100}
    | (\(c\)\W*)?copyright\W*(\(c\)|\u00a9|by\b|[12]\d{3}\b).{0,100} | \(c\)\W*[12]\d{3}\b.{0,100}
    | .{0,60}\b(uses?|using)\ cookies\b.{0,200} | accept\ (all\ )?cookies\W*
    | .{0,60}\bjavascript\b.{0,30}\b(disabled|enabled|enable|required)\b.{0,60} | .{0,20}enable\ javascript.{0,60}
    | (click\ here|read\ more|share\ this|log\ ?in|sign\ (in|up)|subscribe|print|e-?mail|next|previous|home|menu)\W*
    | (terms\ of\ (use|service)|privacy\ policy|contact\ us|about\ us|back\ to\ top|skip\ to\ (main\ )?content)\W*
    | page\ \d+(\ of\ \d+)?\W* | \*{3}\ ?(start|end)\ of\ .{0,200}
    """,
    re.IGNORECASE | re.VERBOSE,
)
MAX_COMBINING = 500
"""Combining characters in a row. Unicode's stream-safe format allows 30; putting n in order takes n^2 steps (NFC)."""
HUGE = 10_000
"""Documents of a cluster of near duplicates above which it is named."""
DROPPING = ("", "length", "language", *DOCUMENT_RULES, "excluded_documents")
"""Rules that look last at a document and drop it as a whole, in their order; "" keeps it."""


def paragraphs_of(text: str) -> list[str]:
    """Return the lines of a text that hold something, stripped."""
    return list(filter(None, map(str.strip, text.splitlines())))


def find_controls(text: str) -> re.Match[str] | None:
    """Find the first control, zero-width or direction character."""
    if text.isascii():
        content = text.encode()
        return CONTROLS.search(text) if len(content.translate(None, _ASCII_CONTROLS)) < len(content) else None
    # The pattern is slow. It looks at lines with a character that cannot be printed: one of these, a tab, a joiner.
    suspects = (line for line in text.splitlines() if not line.isprintable())
    return CONTROLS.search(text) if any(map(CONTROLS.search, suspects)) else None


def is_boilerplate(paragraph: str, own: Iterable[re.Pattern[str]]) -> bool:
    """Return whether a paragraph belongs to a web page and not to its text.

    Args:
        paragraph: One line.
        own: Further patterns of the user.
    """
    return bool(
        (len(paragraph) <= 320 and BOILERPLATE.fullmatch(paragraph))
        or any(pattern.search(paragraph) for pattern in own)
    )


def repeated_share(paragraphs: list[str]) -> float:
    """Return the share of characters in paragraphs that occurred before in the document (Rae et al. 2021, Table A1)."""
    total = sum(map(len, paragraphs))
    return 1 - sum(map(len, set(paragraphs))) / total if total else 0.0


def excess_of(text: str) -> str:
    """Return why a document would take time by the square of its length; "" if it would not.

    Nobody writes such text, but broken programs do. The bound depends on the text alone, never on a clock, so that slow
    machines build the same bytes.
    """
    if text.isascii():
        return ""
    # Any run of twice the stride has a whole stretch between two samples, so few characters are looked at.
    for start in range(0, len(text), MAX_COMBINING):
        if unicodedata.combining(text[start]):
            stretch = text[start : start + MAX_COMBINING]
            if len(stretch) == MAX_COMBINING and all(map(unicodedata.combining, stretch)):
                return f"more than {MAX_COMBINING} combining characters in a row"
    return ""


def _kept_by(rule: LineRule, document: Measured) -> list[str]:
    return paragraphs_of(compose("\n".join(rule.keep(list(document.lines)))))


class Cleaner:
    """Cleans the documents of one chunk."""

    def __init__(
        self,
        config: CleanConfig,
        problems: Problems,
        *,
        keeps_language: Callable[[list[str]], bool] | None = None,
        is_known: Callable[[list[str]], bool] | None = None,
        verdicts: Iterable[int] | None = None,
        cluster_size: Callable[[list[str]], int] | None = None,
        kept_paragraphs: Callable[[list[str]], list[str]] | None = None,
    ) -> None:
        """Prepare.

        Args:
            config: Which rules, and their bounds.
            problems: Takes the first texts that each rule dropped or changed as examples.
            keeps_language: Says whether a document is in a language that the rule ``language`` keeps; without it, that
                rule is left out.
            is_known: Says whether a document is in a build whose documents are left out.
            verdicts: The ``verdicts`` of an earlier reading of the same documents. With them, rules on whole documents
                are not asked again, except the ones over the whole corpus.
            cluster_size: Returns how many documents, itself counted, one stands for by the rule ``near_duplicates``,
                and 0 if it does not stay; without it, that rule is left out: then it is asked which documents the
                other rules keep.
            kept_paragraphs: Returns the paragraphs that a document keeps by the rule ``duplicate_paragraphs``; without
                it, that rule is left out likewise.
        """
        self._config = config
        self._rules = frozenset(config.rules)
        self._masks = [
            (name, re.compile(pattern), replacement, find)
            for name, (pattern, replacement, find) in MASKS.items()
            if name in config.rules
        ]
        self._line_rules = [(name, LINE_RULES[name]) for name in LINE_RULES if name in config.rules]
        self._line_rules += [(name, partial(_kept_by, rule)) for name, (rule, _) in config.rules_of_packages().items()]
        self._document_rules = [(name, DOCUMENT_RULES[name]) for name in DOCUMENT_RULES if name in config.rules]
        self._own = [re.compile(pattern) for pattern in config.boilerplate]
        self._problems, self._keeps_language, self._is_known = problems, keeps_language, is_known
        self._kept_paragraphs, self._cluster_size = kept_paragraphs, cluster_size
        self._recorded = None if verdicts is None else iter(verdicts)
        self._document = Measured([], config)
        self.verdicts = bytearray()
        """Index in ``DROPPING`` of the rule that dropped each document with text, in the order of the documents."""
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)
        """Documents, paragraphs and characters that each rule dropped or changed."""

    def clean(self, text: str, origin: object) -> list[str] | None:
        """Return the paragraphs of a document, perhaps none; None if a rule dropped the document.

        Args:
            text: The document as it is in the file.
            origin: File and position, written into examples.
        """
        rules = self._rules
        # Rules on characters.
        if "mojibake" in rules and may_be_misread(text):
            text = self._repair(text, origin)
        if "control_characters" in rules and (control := find_controls(text)):
            cleaned = CONTROLS.sub("", text)
            around = text[max(0, control.start() - 30) : control.end() + 30]
            self._count("control_characters", around, origin, characters=len(text) - len(cleaned))
            text = cleaned
        if self._masks:
            content = masked = text.encode()
            for mask in self._masks:
                masked = self._mask(*mask, masked, origin)
            text = text if masked is content else masked.decode()
        if excess := excess_of(text):  # no rule: neither the rules below nor the sentences could be had in time
            self._problems.add("excessive_documents", f"{origin}: {excess}")
            return None
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
        for name, kept_lines in self._line_rules:
            if (kept := kept_lines(self._measured(paragraphs))) != paragraphs:
                paragraphs = self._shorter(name, paragraphs, kept, origin)
        # Rules on the remaining document. One without text is no document of a wrong length or language.
        if paragraphs and (misfit_rule := self._misfit(paragraphs)):
            self._drop(misfit_rule, paragraphs, origin)
            return None
        if "near_duplicates" in rules and self._cluster_size is not None and paragraphs:
            size = self._cluster_size(paragraphs)
            if not size:
                self._drop("near_duplicates", paragraphs, origin)
                return None
            if size > 1:
                kind = "kept_of_many_near_duplicates" if size > HUGE else "kept_of_near_duplicates"
                self._problems.give_example(kind, f"{origin}: one of {size:,}: {' / '.join(paragraphs)!r}")
        # The owner of a paragraph is one of the documents that are left by now. A document that loses paragraphs to
        # others may be too short after that.
        if "duplicate_paragraphs" in rules and self._kept_paragraphs is not None:
            kept = self._kept_paragraphs(paragraphs)
            if len(kept) == len(paragraphs):
                return paragraphs
            paragraphs = self._shorter("duplicate_paragraphs", paragraphs, kept, origin)
            rule = "length" if self._is_misfit_in_length(paragraphs) else self._excluded(paragraphs)
            if paragraphs and rule:
                self._drop(rule, paragraphs, origin)
                return None
        return paragraphs

    def _measured(self, paragraphs: list[str]) -> Measured:
        """Return the measures of a document, which rules on lines and on documents share while no line is dropped."""
        if self._document.lines is not paragraphs:
            self._document = Measured(paragraphs, self._config)
        return self._document

    def _misfit(self, paragraphs: list[str]) -> str:
        """Return the rule that drops a document as a whole, or "", from the record or by asking the rules."""
        if self._recorded is not None:
            return DROPPING[next(self._recorded, 0)]
        self.verdicts.append(DROPPING.index(rule := self._first_to_drop(paragraphs)))
        return rule

    def _first_to_drop(self, paragraphs: list[str]) -> str:
        if self._is_misfit_in_length(paragraphs):
            return "length"
        if "language" in self._rules and self._keeps_language is not None and not self._keeps_language(paragraphs):
            return "language"
        rules = (name for name, is_dropped in self._document_rules if is_dropped(self._measured(paragraphs)))
        return next(rules, "") or self._excluded(paragraphs)

    def _excluded(self, paragraphs: list[str]) -> str:
        return "excluded_documents" if self._is_known is not None and self._is_known(paragraphs) else ""

    def _is_misfit_in_length(self, paragraphs: list[str]) -> bool:
        config, characters = self._config, sum(map(len, paragraphs))
        return "length" in self._rules and not config.min_characters <= characters <= config.max_characters

    def _mask(
        self, rule: str, pattern: re.Pattern[str], replacement: str, find: Find, text: bytes, origin: object
    ) -> bytes:
        """Return UTF-8 with all that a pattern finds replaced; the example shows the text around it alone."""
        parts, end, characters, matches, first = [], 0, 0, 0, 0
        while (place := find(text, end)) >= 0:
            # The lines before have no match. ``end`` is the end of a line, or the start of the text.
            begin, stop = text.rfind(b"\n", end, place) + 1, text.find(b"\n", place)
            stop = len(text) if stop < 0 else stop
            line = text[begin:stop].decode()
            masked, count = pattern.subn(replacement, line)
            if count and not matches and (match := pattern.search(line)):
                first = len(text[:begin].decode()) + match.start()
            parts += [text[end:begin], masked.encode()]
            characters += len(line) - len(masked) + count * len(replacement)
            matches, end = matches + count, stop
        if not matches:
            return text
        result = b"".join([*parts, text[end:]])
        around = result.decode()[max(0, first - 30) : first + len(replacement) + 30]
        self._count(rule, around, origin, characters=characters, matches=matches)
        return result

    def _repair(self, text: str, origin: object) -> str:
        """Return a text with wrongly decoded lines repaired, and without lines that cannot be."""
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

    def _shorter(self, rule: str, before: list[str], after: list[str], origin: object) -> list[str]:
        """Return ``after``, and count the paragraphs of ``before`` that a rule took away."""
        if len(after) < len(before):
            lost = sum(map(len, before)) - sum(map(len, after))
            kept = set(after)
            example = next((line for line in before if line not in kept), before[0])
            self._count(rule, example, origin, paragraphs=len(before) - len(after), characters=lost)
        return after

    def _drop(self, rule: str, paragraphs: list[str], origin: object) -> None:
        """Count a dropped document."""
        self._count(rule, " / ".join(paragraphs), origin, documents=1, characters=sum(map(len, paragraphs)))

    def _count(self, rule: str, example: str, origin: object, **amounts: int) -> None:
        for name, amount in amounts.items():
            self.counts[rule][name] += amount
        if self._problems.lacks_examples(rule):
            self._problems.give_example(rule, f"{origin}: {example!r}")
