"""The configuration of a build: what a file or the flags of ``megabert-data build`` say."""

import math
import re
from typing import Any, Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from megabert.config.loading import to_dict
from megabert.config.strict import STRICT
from megabert.tokenization import Pieces


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SourceConfig:
    """One source of text."""

    input: str
    """Path, glob or URL of the files; every match is read."""
    name: str | None = None
    """Shown in counts; default: the glob."""
    format: Literal["auto", "text", "book", "jsonl", "parquet", "arrow", "wikipedia"] = "auto"
    """text: documents parted by blank lines; book: one file each; jsonl: one JSON object a line; auto: by file name."""
    encoding: str = "utf-8"
    """Decoded strictly: a byte that does not fit is an error."""
    field: str = "text"
    """JSON Lines, Parquet, Arrow: the key or column that holds the text."""
    weight: float = Field(1.0, gt=0, le=1000)
    """How often each training document counts: 2 twice, 0.5 every other one, by a hash of its text."""

    @property
    def title(self) -> str:
        """Name shown in counts."""
        return self.name or self.input


CleaningRule = Literal[
    "mojibake",
    "control_characters",
    "boilerplate",
    "repeated_lines",
    "length",
    "language",
    "duplicate_documents",
    "duplicate_paragraphs",
]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CleanConfig:
    """Which cleaning rules run, and their bounds."""

    rules: tuple[CleaningRule, ...] = ("mojibake", "control_characters")
    """In any order; they run in the order in which the documentation lists them."""
    min_characters: int = Field(default=100, ge=0)
    """length: shorter documents are dropped."""
    max_characters: int = Field(default=10_000_000, ge=1)
    """length: longer documents are dropped."""
    boilerplate: tuple[str, ...] = ()
    """boilerplate: regular expressions of further lines to drop."""
    max_repeated_share: float = Field(default=0.3, ge=0, le=1)
    """repeated_lines: documents with more of their characters in repeated lines are dropped."""
    languages: tuple[str, ...] = ()
    """language: ISO 639-1 codes; documents in others are dropped."""
    min_paragraph_characters: int = Field(default=100, ge=1)
    """duplicate_paragraphs: shorter ones may repeat."""

    @model_validator(mode="after")
    def _rules_are_usable(self) -> "CleanConfig":
        if "language" in self.rules and not self.languages:
            raise ValueError("rules has language, but languages names none; say which to keep, such as [en]")
        for pattern in self.boilerplate:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"boilerplate={pattern!r}: no regular expression ({error})") from None
        return self


@dataclass(frozen=True, kw_only=True, config=STRICT)
class BuildConfig:
    """What to build; together with the inputs it determines every byte of the shards."""

    sources: tuple[SourceConfig, ...] = Field(min_length=1)
    """Where the text comes from, counted per source."""
    clean: CleanConfig = CleanConfig()
    """What is cleaned off the text."""
    max_bad_share: float = Field(0.0, ge=0, le=1)
    """Share of the documents that may be unreadable (wrong bytes, no JSON); at 0 the first one ends the build."""
    language: str = "en"
    """ISO 639-1 code that the sentence splitter goes by."""
    tokenizer: str | None = None
    """Folder of an existing tokenizer in Hugging Face form; without it a vocabulary is trained."""
    pieces: Pieces = "wordpiece"
    """Vocabulary to train: wordpiece (BERT, ALBERT, ELECTRA) or byte_bpe (RoBERTa, DeBERTa)."""
    vocab_size: int = Field(30_522, ge=64)
    """Pieces of the vocabulary to train."""
    uncased: bool = False
    """Train a vocabulary that lower-cases; the default keeps case and accents."""
    lengths: tuple[int, ...] = (128, 512)
    """Longest instances to build, in tokens; one set of shards for each."""
    objective: Literal["nsp", "sop", "none"] = "nsp"
    """nsp: next sentence; sop: sentence order; none: full sentences in one segment."""
    pairing: Literal["balanced", "google"] = "balanced"
    """balanced: even labels, no leak through length; google: the original's distribution."""
    masking: Literal["static", "dynamic"] = "static"
    """static: masks are in the shards; dynamic: left to the loader."""
    mask_unit: Literal["token", "whole_word", "span"] = "token"
    """What is masked together: tokens, all pieces of a word, or runs of words (SpanBERT)."""
    dupe_factor: int = Field(5, ge=1)
    """Passes over the training documents, each with other pairs and masks."""
    short_seq_prob: float = Field(0.1, ge=0, le=1)
    """Share of instances made shorter on purpose."""
    masked_lm_prob: float = Field(0.15, gt=0, lt=1)
    """Share of tokens to predict."""
    max_predictions_per_seq: tuple[int, ...] | None = None
    """Most predictions in an instance, one number a length; default: share times length, rounded up (20 at 128)."""
    validation_share: float = Field(0.02, ge=0, lt=1)
    """Share of documents held out, by a hash of their text."""
    seed: int = Field(12_345, ge=0, lt=2**63)
    """Of all draws."""
    buckets: int | None = Field(None, ge=1, le=65_536)
    """Parts that documents are spread over; default: one for 5 million tokens, fewer where documents are few."""
    chunk_mib: float = Field(8.0, gt=0)
    """Text that one unit of reading takes; small inputs are cut finer."""

    @model_validator(mode="after")
    def _lengths_are_usable(self) -> "BuildConfig":
        if not self.lengths or len(set(self.lengths)) != len(self.lengths):
            raise ValueError(f"lengths={self.lengths}: give one or more lengths, each once")
        if min(self.lengths) < 16 or max(self.lengths) > 65_535:
            raise ValueError(f"lengths={self.lengths}: allowed are 16 to 65535 tokens")
        counts = self.max_predictions_per_seq
        if counts is not None and (len(counts) != len(self.lengths) or min(counts) < 1):
            raise ValueError(f"max_predictions_per_seq={counts}: give one positive number for each of {self.lengths}")
        if self.objective != "nsp" and self.pairing == "google":
            raise ValueError(f"pairing=google is defined for objective=nsp, not {self.objective}; use balanced")
        return self

    @property
    def chunk_bytes(self) -> int:
        """Bytes that one unit of reading takes."""
        return int(self.chunk_mib * 2**20)

    def max_predictions(self, length: int) -> int:
        """Return the most masked positions in an instance of at most ``length`` tokens."""
        if self.max_predictions_per_seq is not None:
            return self.max_predictions_per_seq[self.lengths.index(length)]
        return math.ceil(round(self.masked_lm_prob * length, 6))

    def to_dict(self) -> dict[str, Any]:
        """Return plain nested values for the manifest."""
        return to_dict(self)
