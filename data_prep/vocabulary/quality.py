"""Held-out text, and the quality of a vocabulary on it.

A hash of a document's id decides whether it is held out (5%): then it is kept aside and not trained on. Afterwards the
tokenizer is measured on that text: how many of its words become [UNK], how many of its characters have a piece, and
whether the text can be read back. `require_bars` and `require_fit` refuse a vocabulary that loses text.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from data_prep.config.languages import UNSPACED
from megabert.foundation.errors import DataError
from megabert.foundation.randomness.keyed import mix, string_key, uniform
from megabert.tokens.tokenization import Tokenizer, compose, has_hangul
from megabert.tokens.tokenization.tokenizer_kinds import UNIGRAM
from megabert.tokens.tokenization.training import MAX_TRAINED_WORD, without_endless_words

MAX_UNKNOWN_WORDS_PCT = 0.5
MIN_COVERAGE_PCT = 99.95
MAX_HELD_OUT_CHARACTERS = 5_000_000  # further held-out documents are neither trained on nor measured
_HELD_OUT_DRAW = string_key("vocabulary held-out")  # the name of the draw that holds a document out
_UNSPACED = re.compile(UNSPACED)
_WHITESPACE = re.compile(r"\s+")
_BATCH = 4096  # texts encoded at once
MAX_LINE = 65_536
"""Characters of the longest line that is split into words at one go."""


@dataclass(kw_only=True)
class HeldOut:
    """Held-out text, gathered while the rest streams by."""

    share: float
    """Share of the documents to hold out."""
    seed: int
    """Another seed holds out other documents."""
    texts: list[str] = field(default_factory=list)
    """The held-out documents."""
    characters: int = 0
    """Characters of these."""
    trained: int = 0
    """Documents that are trained on."""
    all_characters: Counter[str] = field(default_factory=Counter)
    """How often each character occurs in the held-out documents; training adds the characters of the others."""
    most_characters: float = MAX_HELD_OUT_CHARACTERS
    """Characters of the documents that are kept, about."""
    endless_words: int = 0
    """Words of thousands of characters, which are not measured."""
    fallback: tuple[float, str] | None = None
    """The document with the smallest draw among the trained ones, to be held out next: its draw and its text."""

    def keep(self, text: str) -> None:
        """Keep a document to measure, unless there is enough."""
        self.all_characters.update(text)
        if self.characters < self.most_characters:
            self.texts.append(text)
            self.characters += len(text)

    def is_trained(self, name: str, text: str) -> bool:
        """Take note of a document, whose text is composed (NFC); return whether it is trained on, and not held out."""
        measured, endless = without_endless_words(text)
        self.endless_words += endless
        # The draw depends on the id and the seed alone: the same document is held out whatever comes before it.
        draw = float(uniform(mix(self.seed, _HELD_OUT_DRAW, string_key(name))))
        if draw < self.share:
            self.keep(measured)
            return False
        # A corpus of a few documents may hold out none; then the report says that it measured a trained one.
        self.fallback = min(self.fallback or (1.0, ""), (draw, measured))
        self.trained += 1
        return True

    def take_rest(self, documents: Iterable[tuple[str, str]]) -> Iterator[str]:
        """Keep the held-out documents, (id, text) each, and yield the others; texts are composed (NFC)."""
        yield from (text for name, text in documents if self.is_trained(name, text))
        if not self.trained and self.texts:  # all of a corpus of a few documents: better trained on than refused
            self.fallback = (0.0, self.texts[0])
            self.trained, self.characters = len(self.texts), 0
            yield from self.texts
            self.texts = []

    def measured(self) -> list[str]:
        """Return the texts to measure: the held-out ones or, without any, the fallback."""
        return self.texts or ([self.fallback[1]] if self.fallback else [])


@dataclass(frozen=True, kw_only=True)
class VocabularyReport:
    """Quality of a tokenizer on held-out text. Words are counted after normalizing and splitting at punctuation."""

    vocab_size: int
    tokenizer_sha256: str
    trained_documents: int
    held_out_documents: int
    held_out_words: int
    unknown_words_pct: float
    """Share of the words that become [UNK]. Unigram: in scripts without spaces, pieces are counted, not words."""
    pieces_per_word: float
    coverage_pct: float
    """Share of the characters of all documents, trained on and held out, that are in the vocabulary as pieces."""
    held_out_coverage_pct: float
    """Share of the held-out characters with a piece for their place in the word (first or not). It has no bar: in a
    small text one rare character decides."""
    round_trip_pct: float
    """Share of the paragraphs that decode to their normalized text, white space apart."""
    split_hangul_pct: float
    """Share of the words whose Hangul syllables the tokenizer splits into jamo."""
    endless_words: int = 0
    """Words above `tokenization.MAX_TRAINED_WORD` characters, which are neither trained on nor measured."""
    is_held_out: bool = True
    """Whether held-out documents were measured; if there were too few to hold one out, a trained one was."""
    frequent_unknown: tuple[str, ...] = field(default=())
    """The most frequent words that become [UNK]."""

    def lines(self) -> list[str]:
        """Return the report as lines to print."""
        place = f"{self.held_out_documents:,} held-out documents" if self.is_held_out else "one TRAINED document"
        endless = f"left out        {self.endless_words:,} words of more than {MAX_TRAINED_WORD:,} characters"
        unknown = f" (most frequent: {' '.join(self.frequent_unknown)})" if self.frequent_unknown else ""
        return [
            f"vocabulary      {self.vocab_size:,} pieces, sha256 {self.tokenizer_sha256[:16]}",
            f"measured on     {place}, {self.held_out_words:,} words",
            f"[UNK]           {self.unknown_words_pct:.4f}% of words (at most {MAX_UNKNOWN_WORDS_PCT}%){unknown}",
            f"coverage        {self.coverage_pct:.4f}% of all characters (at least {MIN_COVERAGE_PCT}%), "
            f"{self.held_out_coverage_pct:.4f}% of those held out",
            f"pieces per word {self.pieces_per_word:.3f}",
            f"round trip      {self.round_trip_pct:.2f}% of paragraphs decode to their normalised text",
            *([endless] if self.endless_words else []),
        ]


def require_bars(report: VocabularyReport, *, where: str = "vocabulary") -> None:
    """Refuse a vocabulary that loses text.

    Args:
        report: The measurements.
        where: Names the tokenizer in the message.

    Raises:
        DataError: More than 0.5% of the held-out words become [UNK], fewer than 99.95% of all characters can
            be written, or more than 0.5% of the words are Hangul split into jamo.
    """
    # All at once: they have one remedy, and a user who fixes one would meet the next only after another training.
    problems = []
    if report.unknown_words_pct > MAX_UNKNOWN_WORDS_PCT:
        problems.append(
            f"{report.unknown_words_pct:.3f}% of held-out words become [UNK], allowed is {MAX_UNKNOWN_WORDS_PCT}%"
        )
    if report.coverage_pct < MIN_COVERAGE_PCT:
        problems.append(
            f"it can write {report.coverage_pct:.3f}% of the characters, at least {MIN_COVERAGE_PCT}% are needed"
        )
    if report.split_hangul_pct > MAX_UNKNOWN_WORDS_PCT:
        problems.append(f"it splits the Hangul of {report.split_hangul_pct:.3f}% of the words into jamo")
    if problems:
        seen = f" Frequent unknown words: {' '.join(report.frequent_unknown)}." if report.frequent_unknown else ""
        raise DataError(
            f"{where}: {'; '.join(problems)}.{seen} Nothing was written. Train a vocabulary on more of this "
            "text, raise vocab_size, or remove documents in other scripts."
        )


def require_fit(report: VocabularyReport, *, where: str) -> None:
    """Refuse a given tokenizer that does not know the text.

    Args:
        report: The measurements on a part of the text.
        where: Names the tokenizer in the message.

    Raises:
        DataError: More than 0.5% of the words become [UNK].
    """
    if report.unknown_words_pct > MAX_UNKNOWN_WORDS_PCT:
        raise DataError(
            f"{where}: {report.unknown_words_pct:.3f}% of the words become [UNK], allowed is {MAX_UNKNOWN_WORDS_PCT}% "
            f"(frequent ones: {' '.join(report.frequent_unknown)}). No instance was made. Give the tokenizer of this "
            "text's language and script, or leave --tokenizer out to train a vocabulary."
        )


def measure(tokenizer: Tokenizer, held_out: HeldOut) -> VocabularyReport:
    """Measure a tokenizer; each different word is encoded once and weighted by how often it occurs."""
    texts = held_out.measured()
    words = _count_words(tokenizer, texts)
    if not words:
        raise DataError("vocabulary: the held-out documents have no words. Give more documents that hold text.")
    # Each word is encoded once; its pieces count as often as the word occurs.
    names, counts = list(words), np.array(list(words.values()), np.int64)
    pieces, unknown = _count_pieces(tokenizer, names)
    total = int(counts.sum())
    # Jamo that would form a syllable: the text was composed, so the tokenizer has split them.
    split_hangul = sum(count for word, count in words.items() if compose(word) != word and has_hangul(word))
    is_unknown = unknown > 0
    units, unknown_units = _count_units(tokenizer, names, pieces, unknown)
    worst = sorted(np.flatnonzero(is_unknown).tolist(), key=lambda index: (-counts[index], names[index]))[:10]
    return VocabularyReport(
        vocab_size=tokenizer.vocab_size,
        tokenizer_sha256=tokenizer.sha256,
        trained_documents=held_out.trained,
        held_out_documents=len(held_out.texts),
        held_out_words=total,
        unknown_words_pct=100 * int((counts * unknown_units).sum()) / int((counts * units).sum()),
        pieces_per_word=int((counts * pieces).sum()) / total,
        coverage_pct=100 * _coverage(tokenizer, _normalize_characters(tokenizer, held_out.all_characters)),
        held_out_coverage_pct=100 * _coverage(tokenizer, words),
        round_trip_pct=100 * _round_trip(tokenizer, texts),
        split_hangul_pct=100 * split_hangul / total,
        endless_words=held_out.endless_words,
        is_held_out=bool(held_out.texts),
        frequent_unknown=tuple(names[index] for index in worst),
    )


def _count_words(tokenizer: Tokenizer, texts: list[str]) -> Counter[str]:
    """Count the words of all texts, line by line: a call for each different word would take several times as long."""
    words: Counter[str] = Counter()
    spaced: Counter[str] = Counter()
    for line in (line for text in texts for line in text.split("\n")):
        if len(line) <= MAX_LINE:
            words.update(tokenizer.split_words(line))
        else:  # may be millions of marks: each different one is looked at once
            spaced.update(tokenizer.split_spans(line))
    for part, count in spaced.items():
        for word in tokenizer.split_words(part):
            words[word] += count
    return words


def _count_pieces(tokenizer: Tokenizer, words: list[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the number of pieces of each word, and how many of these are [UNK]."""
    ids, offsets = tokenizer.encode_flat(words)
    # WordPiece makes a whole word one [UNK], Unigram each unknown part of it.
    unknown = np.concatenate([[0], np.cumsum(ids == tokenizer.special_ids.unk)])[offsets]
    return np.diff(offsets), np.diff(unknown)


def _count_units(
    tokenizer: Tokenizer, words: list[str], pieces: NDArray[np.int64], unknown: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the units of each word that may be unknown, and how many are.

    A word is one. In a script without spaces a "word" is a clause, and Unigram loses a part of it alone, so its pieces
    are counted. WordPiece makes a whole word [UNK] in every script.
    """
    is_unigram = tokenizer.kind is UNIGRAM
    is_clause = np.array([is_unigram and _UNSPACED.search(word) is not None for word in words])
    return np.where(is_clause, pieces, 1), np.where(is_clause, unknown, unknown.clip(max=1))


def _normalize_characters(tokenizer: Tokenizer, characters: Counter[str]) -> Counter[str]:
    """Return the normalized forms of single characters; white space and control characters vanish."""
    normalized: Counter[str] = Counter()
    for character, count in characters.items():
        for result in _squeeze(tokenizer.normalize(character)):
            normalized[result] += count
    return normalized


def _coverage(tokenizer: Tokenizer, words: Counter[str]) -> float:
    """Return the share of the characters that the tokenizer can write.

    WordPiece has a piece for a character at the start of a word, and another (``##``) for one inside: each is asked
    for.
    """
    # Different words share characters: asking once for each (character, is it the first) saves most questions.
    characters: Counter[tuple[str, bool]] = Counter()
    for word, count in words.items():
        for index, character in enumerate(word):
            characters[character, index == 0] += count
    written = sum(n for (character, first), n in characters.items() if tokenizer.can_write(character, is_first=first))
    return written / max(sum(characters.values()), 1)


def _round_trip(tokenizer: Tokenizer, texts: list[str]) -> float:
    """Return the share of the paragraphs that decode to their normalized text, white space apart."""
    paragraphs = [line for text in texts for line in text.splitlines() if line.strip()]
    whole = 0
    for first in range(0, len(paragraphs), _BATCH):
        batch = paragraphs[first : first + _BATCH]
        for text, ids in zip(batch, tokenizer.encode_batch(batch), strict=True):
            whole += _squeeze(tokenizer.decode(ids)) == _squeeze(tokenizer.normalize(text))
    return whole / max(len(paragraphs), 1)


def _squeeze(text: str) -> str:
    """Return the text without white space."""
    return _WHITESPACE.sub("", text)
