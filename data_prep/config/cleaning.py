"""The settings of cleaning: which rules run, and the bounds of each."""

import re
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field, model_validator
from pydantic.dataclasses import dataclass

from data_prep.config.languages import require_identifiable
from megabert.settings.config.extensions import load_extension
from megabert.settings.config.fields import STRICT

Share = Annotated[float, Field(ge=0, le=1)]
Shares = Annotated[tuple[Share, ...], Field(max_length=20)]
"""One for each length of runs of words: each is another count of the whole text."""
KeptLanguage = Annotated[str, AfterValidator(require_identifiable)]
CharacterRule = Literal["mojibake", "control_characters", "email_addresses", "ip_addresses", "phone_numbers"]
ParagraphRule = Literal["boilerplate", "repeated_lines", "c4_lines", "c4_javascript", "c4_policies"]
BoundRule = Literal["length", "language"]
GopherWordRule = Literal["gopher_words", "gopher_word_length", "gopher_symbols"]
GopherShareRule = Literal["gopher_bullets", "gopher_ellipses", "gopher_letters", "gopher_stop_words"]
GopherRepetitionRule = Literal["gopher_repeated_lines", "gopher_top_ngrams", "gopher_repeated_ngrams"]
C4Rule = Literal["c4_lorem_ipsum", "c4_brackets", "c4_sentences"]
FineWebRule = Literal["fineweb_line_ends", "fineweb_short_lines", "fineweb_repeated_lines"]
QualityRule = Literal[GopherWordRule, GopherShareRule, GopherRepetitionRule, C4Rule, FineWebRule]
CorpusRule = Literal["near_duplicates", "duplicate_paragraphs", "duplicate_documents"]
CleaningRule = Literal[CharacterRule, ParagraphRule, BoundRule, QualityRule, CorpusRule]
"""All rules, in the order in which they run."""
CORPUS_RULES: tuple[str, ...] = get_args(CorpusRule)
"""Rules that compare all documents, whose effect a sample cannot show."""
RULES: tuple[str, ...] = get_args(CleaningRule)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CleanConfig:
    """Which cleaning rules run, and their bounds."""

    rules: tuple[CleaningRule | str, ...] = ("mojibake", "control_characters")
    """Cleaning rules, in any order: they run in the order in which the documentation lists them. Rules of installed
    packages follow those on lines, in the order in which they are named."""
    options: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Options of packages' rules, by rule."""
    min_characters: int = Field(default=100, ge=0, le=10**9)
    """Rule length: shorter documents are dropped."""
    max_characters: int = Field(default=10_000_000, ge=1, le=10**9)
    """Rule length: longer documents are dropped."""
    boilerplate: tuple[str, ...] = ()
    """Rule boilerplate: regular expressions of further lines to drop."""
    max_repeated_share: float = Field(default=0.3, ge=0, le=1)
    """Rule repeated_lines: documents with a larger share of their characters in repeated lines are dropped."""
    languages: tuple[KeptLanguage, ...] = ()
    """Rule language: ISO 639 codes of the languages to keep in sources without a code of their own; documents in others
    are dropped. By default the language that is stated for the source; auto needs a list."""
    gopher_min_words: int = Field(default=50, ge=0, le=10**9)
    """Rule gopher_words: documents with fewer words are dropped."""
    gopher_max_words: int = Field(default=100_000, ge=1, le=10**9)
    """Rule gopher_words: documents with more words are dropped."""
    gopher_min_word_length: float = Field(default=3.0, ge=0, le=1000)
    """Rule gopher_word_length: documents with a smaller mean length of their words are dropped."""
    gopher_max_word_length: float = Field(default=10.0, gt=0, le=1000)
    """Rule gopher_word_length: documents with a larger mean length of their words are dropped."""
    gopher_max_symbols: float = Field(default=0.1, ge=0, le=1000)
    """Rule gopher_symbols: documents with more hash signs, or more ellipses, per word are dropped."""
    gopher_max_bullets: Share = 0.9
    """Rule gopher_bullets: documents with a larger share of lines that begin with a bullet are dropped."""
    gopher_max_ellipses: Share = 0.3
    """Rule gopher_ellipses: documents with a larger share of lines that end with an ellipsis are dropped."""
    gopher_min_letters: Share = 0.8
    """Rule gopher_letters: documents with a smaller share of words that have a letter are dropped."""
    gopher_min_stop_words: int = Field(default=2, ge=0, le=1000)
    """Rule gopher_stop_words: documents with fewer different stop words are dropped."""
    gopher_stop_words: tuple[str, ...] = ("the", "be", "to", "of", "and", "that", "have", "with")
    """Rule gopher_stop_words: the words, in lower case; English ones by default."""
    gopher_max_repeated_lines: Share = 0.3
    """Rule gopher_repeated_lines: documents with a larger share of repeated lines are dropped."""
    gopher_max_repeated_characters: Share = 0.2
    """Rule gopher_repeated_lines: documents with a larger share of their characters in repeated lines are dropped."""
    gopher_max_top_ngrams: Shares = (0.20, 0.18, 0.16)
    """Rule gopher_top_ngrams: largest shares of characters in the most frequent run of 2 words, of 3, and so on."""
    gopher_max_repeated_ngrams: Shares = (0.15, 0.14, 0.13, 0.12, 0.11, 0.10)
    """Rule gopher_repeated_ngrams: largest shares of characters in repeated runs of 5 words, of 6, and so on."""
    c4_min_words: int = Field(default=3, ge=0, le=10**6)
    """Rule c4_lines: lines with fewer words are dropped."""
    c4_min_sentences: int = Field(default=5, ge=0, le=10**6)
    """Rule c4_sentences: documents with fewer ends of sentences are dropped."""
    fineweb_min_line_ends: Share = 0.12
    """Rule fineweb_line_ends: documents with this share of lines that end a sentence, or a smaller one, are dropped."""
    fineweb_max_short_lines: Share = 0.67
    """Rule fineweb_short_lines: documents with this share of short lines, or a larger one, are dropped."""
    fineweb_short_line: int = Field(default=30, ge=1, le=10**6)
    """Rule fineweb_short_lines: lines with fewer characters are short."""
    fineweb_max_repeated_characters: Share = 0.1
    """Rule fineweb_repeated_lines: documents with this share of characters in repeated lines, or more, are dropped."""
    min_paragraph_characters: int = Field(default=100, ge=1, le=10**9)
    """Rule duplicate_paragraphs: shorter paragraphs may repeat."""

    near_duplicate_words: int = Field(default=5, ge=1, le=64)
    """Rule near_duplicates: words that are compared together; characters, in scripts without spaces."""
    near_duplicate_bands: int = Field(default=14, ge=1, le=256)
    """Rule near_duplicates: bands of a document's signature, of which one has to be equal."""
    near_duplicate_rows: int = Field(default=8, ge=1, le=64)
    """Rule near_duplicates: hash functions of a band."""

    @model_validator(mode="after")
    def _rules_are_usable(self) -> "CleanConfig":
        self.rules_of_packages()
        if "near_duplicates" in self.rules and "duplicate_documents" not in self.rules:
            raise ValueError("rules has near_duplicates, but exact copies would stay; add duplicate_documents")
        for name in ("gopher_min_words", "gopher_min_word_length"):
            low, high = getattr(self, name), getattr(self, name.replace("min", "max"))
            if low > high:
                raise ValueError(
                    f"{name}={low}: is above {name.replace('min', 'max')}={high}; no document would be kept"
                )
        for pattern in self.boilerplate:
            try:
                re.compile(pattern)
            except (re.error, OverflowError) as error:
                raise ValueError(f"boilerplate={pattern!r}: no regular expression ({error})") from None
        return self

    def rules_of_packages(self) -> dict[str, tuple[Any, str]]:
        """Return the rules that are not ours, each with its package (`load_extension`), by name and in their order."""
        found = {rule: load_extension("cleaning rule", rule, RULES, self.options.get(rule, {})) for rule in self.rules}
        return {rule: extension for rule, extension in found.items() if extension}
