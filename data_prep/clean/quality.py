"""Rules on the quality of a document, each with the numbers of its paper.

Gopher: Rae et al. 2021, section A1.1 and table A1. C4: Raffel et al. 2020, section 2.2. FineWeb: Penedo et al. 2024,
section 3.6. A line is a paragraph here, and a word is text between white space, so none of the rules on words suits a
script without spaces.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from data_prep.config.cleaning import CleanConfig

ELLIPSES = ("...", "\u2026")
BULLETS = ("\u2022", "\u2023", "\u25cf", "-", "*")
SURE_ENDS = "\u3002\uff01\uff1f\uff0e\u0964\u06d4\u061f"
"""Marks that end a sentence and nothing else; the others do before white space or a closing mark."""
SENTENCE_ENDS = frozenset(f".!?{SURE_ENDS}\u2026")
LINE_ENDS = SENTENCE_ENDS | {'"', "\u201d"}
"""Ends of a line of C4: the terminal marks, here of any script, and a quotation that ends."""
CLOSING = "\"')]}\u2019\u201d\u00bb"
WORD_MARKS = "\"'.,;:!?()[]\u201c\u201d\u2018\u2019"
"""Marks that do not belong to a stop word."""
FIRST_WORDS = 32
"""Words among which stop words are looked for first."""
MAX_WORD_CHARACTERS = 1000
"""A line with a longer word is dropped by the rule c4_lines, as by C4's own program."""
POLICIES = (b"terms of use", b"privacy policy", b"cookie policy", b"uses cookies", b"use of cookies", b"use cookies")
POLICY_WORDS = (b"terms of use", b"privacy policy", b"cookie")
"""Each of these phrases has one of them, and most texts have none."""
FIRST_TOP, FIRST_REPEATED = 2, 5
"""Words of the shortest runs of ``gopher_top_ngrams`` and ``gopher_repeated_ngrams``."""


class LineRule(ABC):
    """The entry point of a package's cleaning rule: a dataclass whose fields are its bounds."""

    @abstractmethod
    def keep(self, lines: list[str]) -> Iterable[str]:
        """Return the lines of a document that stay, as they were or shorter.

        They have to depend on ``lines`` alone, so that the same text gives the same bytes in any order of files.
        """


class Measured:
    """A document, and its measures that several rules go by; they are taken when a rule asks for them."""

    def __init__(self, lines: list[str], config: CleanConfig) -> None:
        """Take the lines of a document, of which none is empty, and the bounds."""
        self.lines, self.bounds = lines, config
        self.text = "\n".join(lines)
        self.content = self.text.encode()
        self.characters = max(1, len(self.text) - len(lines) + 1)
        """Characters of all lines, without the line breaks."""
        self._bytes = np.frombuffer(self.content, np.uint8)

    @cached_property
    def lower_case(self) -> bytes:
        """The content with ASCII letters in lower case."""
        return self.content.lower()

    @cached_property
    def words(self) -> tuple[int, int, int, int, int, int]:
        """The numbers that `measure_words` returns."""
        from data_prep.clean.word_loops import measure_words

        return measure_words(self._bytes, character_classes())

    @cached_property
    def runs(self) -> tuple[list[int], list[int]]:
        """Characters in the most frequent run and in repeated runs of words, by their length (`measure_runs`)."""
        from data_prep.clean.word_loops import measure_runs

        tops = np.zeros(FIRST_TOP + len(self.bounds.gopher_max_top_ngrams), np.int64)
        repeats = np.zeros(FIRST_REPEATED + len(self.bounds.gopher_max_repeated_ngrams), np.int64)
        measure_runs(self._bytes, character_classes(), self.words[0], tops, repeats)
        return tops.tolist(), repeats.tolist()

    def per_word(self, count: float) -> float:
        """Return a count per word."""
        return count / max(1, self.words[0])

    def share_of_lines(self, is_counted: Callable[[str], bool]) -> float:
        """Return the share of lines that are counted."""
        return sum(map(is_counted, self.lines)) / len(self.lines)

    @cached_property
    def repeated_lines(self) -> list[str]:
        """Lines that occurred before in the document."""
        seen: set[str] = set()
        return [line for line in self.lines if line in seen or seen.add(line)]  # type: ignore[func-returns-value]

    @cached_property
    def repeated_share(self) -> float:
        """Share of the characters in repeated lines."""
        return sum(map(len, self.repeated_lines)) / self.characters


@cache
def character_classes() -> NDArray[np.uint8]:
    """Return the kind of each character up to U+3FFFF, after which there is neither a letter nor white space."""
    from data_prep.clean.word_loops import ALPHANUMERIC, CLOSING_MARK, DECIMAL, LETTER, MARK, SPACE, SURE_END

    characters = np.arange(0x40000, dtype=np.uint32).view("U1")
    kinds = np.zeros(len(characters), np.uint8)
    for kind, is_of_kind in (
        (SPACE, np.strings.isspace),
        (LETTER, np.strings.isalpha),
        (ALPHANUMERIC, np.strings.isalnum),
        (DECIMAL, np.strings.isdecimal),
    ):
        kinds |= kind * is_of_kind(characters).astype(np.uint8)
    for kind, marks in ((MARK, ".!?"), (CLOSING_MARK, "\"')]\u2019\u201d"), (SURE_END, SURE_ENDS)):
        kinds[list(map(ord, marks))] |= kind
    return kinds


def _has_stop_words(document: Measured) -> bool:
    """Return whether there are enough different stop words; prose has them among its first words, as they are."""
    wanted, least = _lower_words(document.bounds.gopher_stop_words), document.bounds.gopher_min_stop_words
    if len(wanted.intersection(document.text.split(None, FIRST_WORDS)[:FIRST_WORDS])) >= least:
        return True
    return len(wanted.intersection([word.strip(WORD_MARKS).lower() for word in document.text.split()])) >= least


@cache
def _lower_words(words: tuple[str, ...]) -> frozenset[str]:
    """Return the words that are in lower case and without marks, as no other one is ever found."""
    return frozenset(word for word in words if word == word.strip(WORD_MARKS).lower())


def _mean_length(document: Measured) -> float:
    words, characters = document.words[2:4]
    return characters / max(1, words)


def _have_too_many(characters: list[int], document: Measured, bounds: Sequence[float]) -> bool:
    """Return whether runs of some length have a larger share of the characters than its bound; most have none."""
    return any(characters) and any(
        one / document.characters > most for one, most in zip(characters, bounds, strict=True)
    )


def _ends_sentence(line: str) -> bool:
    return line.rstrip(CLOSING)[-1:] in SENTENCE_ENDS


def _is_sentence(line: str, document: Measured) -> bool:
    """Return whether a line has an end, enough words, and none that is too long."""
    least = document.bounds.c4_min_words
    return (
        line[-1] in LINE_ENDS
        and not line.endswith(ELLIPSES)
        and len(line.split(None, least - 1)) >= least
        and (
            len(line) <= MAX_WORD_CHARACTERS
            or document.words[4] <= MAX_WORD_CHARACTERS
            or max(map(len, line.split())) <= MAX_WORD_CHARACTERS
        )
    )


def _lines_without(phrases: Sequence[bytes], document: Measured) -> list[str]:
    """Return the lines that have none of some phrases, which are in lower case."""
    if not _has_any(phrases, document.lower_case):
        return document.lines
    return [line for line in document.lines if not _has_any(phrases, line.encode().lower())]


def _has_any(phrases: Sequence[bytes], lower_case: bytes) -> bool:
    # In composed text (NFC) no letter beyond ASCII has a lower case that ends within it.
    return any(map(lower_case.__contains__, phrases))


DOCUMENT_RULES: dict[str, Callable[[Measured], bool]] = {
    "gopher_words": lambda d: not d.bounds.gopher_min_words <= d.words[0] <= d.bounds.gopher_max_words,
    "gopher_word_length": lambda d: (
        not d.bounds.gopher_min_word_length <= _mean_length(d) <= d.bounds.gopher_max_word_length
    ),
    "gopher_symbols": lambda d: (
        max(d.per_word(d.text.count("#")), d.per_word(sum(map(d.text.count, ELLIPSES)))) > d.bounds.gopher_max_symbols
    ),
    "gopher_bullets": lambda d: d.share_of_lines(lambda line: line.startswith(BULLETS)) > d.bounds.gopher_max_bullets,
    "gopher_ellipses": lambda d: d.share_of_lines(lambda line: line.endswith(ELLIPSES)) > d.bounds.gopher_max_ellipses,
    "gopher_letters": lambda d: d.per_word(d.words[1]) < d.bounds.gopher_min_letters,
    "gopher_stop_words": lambda d: not _has_stop_words(d),
    "gopher_repeated_lines": lambda d: (
        len(d.repeated_lines) / len(d.lines) > d.bounds.gopher_max_repeated_lines
        or d.repeated_share > d.bounds.gopher_max_repeated_characters
    ),
    "gopher_top_ngrams": lambda d: _have_too_many(d.runs[0][FIRST_TOP:], d, d.bounds.gopher_max_top_ngrams),
    "gopher_repeated_ngrams": lambda d: _have_too_many(
        d.runs[1][FIRST_REPEATED:], d, d.bounds.gopher_max_repeated_ngrams
    ),
    "c4_lorem_ipsum": lambda d: _has_any((b"lorem ipsum",), d.lower_case),
    "c4_brackets": lambda d: "{" in d.text,
    "c4_sentences": lambda d: d.words[5] < d.bounds.c4_min_sentences,
    "fineweb_line_ends": lambda d: d.share_of_lines(_ends_sentence) <= d.bounds.fineweb_min_line_ends,
    "fineweb_short_lines": lambda d: (
        d.share_of_lines(lambda line: len(line) < d.bounds.fineweb_short_line) >= d.bounds.fineweb_max_short_lines
    ),
    "fineweb_repeated_lines": lambda d: d.repeated_share >= d.bounds.fineweb_max_repeated_characters,
}
"""Rules on whole documents, in their order: whether one is dropped."""

LINE_RULES: dict[str, Callable[[Measured], list[str]]] = {
    "c4_lines": lambda d: [line for line in d.lines if _is_sentence(line, d)],
    "c4_javascript": lambda d: _lines_without((b"javascript",), d),
    "c4_policies": lambda d: _lines_without(POLICIES, d) if _has_any(POLICY_WORDS, d.lower_case) else d.lines,
}
"""Rules on lines, in their order: the lines that stay."""

# Borders are of ASCII, for an address in Chinese stands between letters. Repeats are bounded: a search takes time that
# grows with the text.
_WORD = "A-Za-z0-9_"
_LATIN = "A-Za-z0-9\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0300-\u036f\u1e00-\u1eff"
"""Letters of Latin words, with accents, and digits."""
_SPACED = (
    "\u0370-\u037d\u037f-\u0386\u0388-\u052f\u0531-\u0556\u0561-\u0587"  # Greek, Cyrillic, Armenian
    "\u05d0-\u05ea\u0620-\u0669\u066e-\u06d3\u06d5-\u06ff\u0900-\u0963"  # Hebrew, Arabic, Devanagari
)
"""Letters, with their signs, of other scripts whose words stand between spaces."""
_NATIONAL = _SPACED + "\u0e01-\u0e3a\u0e40-\u0e4e\u3005\u3041-\u30fa\u30fc\u3400-\u9fff\uac00-\ud7a3"
"""These, and letters of Thai, Japanese, Chinese and Korean."""
_BEFORE, _AFTER = rf"(?<![\w{_NATIONAL}@.%+-])", rf"(?![\w{_NATIONAL}-])"
_OCTET, _GROUP = r"(?:25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])", "[0-9A-Fa-f]{1,4}"


def _find_ip_address(content: bytes, start: int) -> int:
    from data_prep.clean.mask_loops import find_ip_address

    return find_ip_address(np.frombuffer(content, np.uint8), start)


def _find_phone_number(content: bytes, start: int) -> int:
    from data_prep.clean.mask_loops import find_phone_number

    return find_phone_number(np.frombuffer(content, np.uint8), start, character_classes())


Find = Callable[[bytes, int], int]
"""Returns a byte of UTF-8, from a start on, of a line that may have a match; -1 if there is none."""
MASKS: dict[str, tuple[str, str, Find]] = {
    "email_addresses": (
        (
            rf"(?<![{_LATIN}_])(?<![{_LATIN}_]['.%+-])(?:[{_LATIN}_]['.%+-]?){{1,64}}@(?:[{_LATIN}_-]{{1,63}}\.){{1,8}}"
            rf"(?:xn--[A-Za-z0-9-]{{2,59}}|[A-Za-z]{{2,24}})(?![{_LATIN}])"
            # International ones (RFC 6531) between spaces or marks, as nothing else bounds them.
            rf"|{_BEFORE}(?:(?:[{_WORD}.%+-]{{1,64}}|[{_NATIONAL}0-9._-]{{1,64}})"
            rf"@(?:[{_NATIONAL}0-9-]{{1,63}}\.){{1,8}}[{_NATIONAL}]{{2,24}}"
            rf"|[{_SPACED}0-9._-]{{1,64}}@(?:[{_LATIN}-]{{1,63}}\.){{1,8}}[A-Za-z]{{2,24}}){_AFTER}"
        ),
        "email@example.com",
        lambda content, start: content.find(b"@", start),
    ),
    "ip_addresses": (
        (
            rf"(?<![{_WORD}.])(?:{_OCTET}\.){{3}}{_OCTET}(?![{_WORD}]|\.[0-9])"
            rf"|(?<![{_WORD}:.])(?:(?:{_GROUP}:){{7}}{_GROUP}"
            # Shortened, with a digit, and three letters or two groups first: "a::b" and "dead::beef" are code.
            rf"|(?=[A-Fa-f:]{{0,39}}[0-9])(?:(?:[0-9A-Fa-f]{{3,4}}:|(?:{_GROUP}:){{2}})(?:{_GROUP}:){{0,5}}:"
            rf"(?:{_GROUP}(?::{_GROUP}){{0,5}})?|::(?:1|{_GROUP}(?::{_GROUP}){{1,6}})))(?![{_WORD}:]|\.[0-9])"
        ),
        "192.0.2.1",
        _find_ip_address,
    ),
    "phone_numbers": (
        (
            # With a country's code, and 8 digits or more: "+150" and "+1 000 000" are amounts, and
            # "+3.14159" begins a decimal number.
            rf"(?<![{_WORD}\d.+-])(?:\+(?=(?:\d[ .()-]{{0,3}}){{8}})(?!\d{{1,3}}\.\d{{5}})"
            r"\d{1,3}(?:[ .-]?(?:\(\d{1,4}\)|\d{1,4})){2,6}"
            r"|(?:1[ .-])?(?:\(\d{3}\) ?|\d{3}[.-])\d{3}[ .-]\d{4})"  # North America
            rf"(?![{_WORD}\d-]|\.\d)"
        ),
        "555-0100",
        _find_phone_number,
    ),
}
"""Rules that replace personal data: the pattern, a text of the same kind that is nobody's (RFC 2606, RFC 5737), and a
quick search for lines that the pattern has to read. No match reaches over the end of a line."""
