"""Train a WordPiece or byte-level BPE vocabulary; the same text always gives the same ids.

The alphabet is as large as the text needs: all single characters, unless they would crowd out the longer pieces.
Hangul syllables are kept whole.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Self

import pyarrow as pa
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from megabert.foundation.errors import ConfigError, DataError
from megabert.tokens.tokenization import tokenizer_kinds as kinds
from megabert.tokens.tokenization.alphabet import choose_alphabet
from megabert.tokens.tokenization.composition import compose, has_hangul
from megabert.tokens.tokenization.special_pieces import mark_spare, spare_names
from megabert.tokens.tokenization.tokenizer import Tokenizer

DEFAULT_VOCAB_SIZE = 30_522
_MIN_FREQUENCY = 2  # pairs of pieces that occur less often are not merged
MAX_TRAINED_WORD = 5000
"""Characters of the longest word that is learned from. Learning the merges of byte-level BPE takes time that grows with
the square of a word's length; WordPiece has no pieces for words of more than a hundred characters."""
_WORDS_PER_BATCH = 1 << 16
# What byte-level BPE takes as a word is a run of one of these at most: letters and numbers, or everything else.
_RUNS = re.compile(r"[^\W_]+|(?:[^\w\s]|_)+")
_LONG_SPANS = re.compile(rf"(?<!\S)\S{{{MAX_TRAINED_WORD + 1},}}")
_FEED_WORDS = 4096  # occurrences of a word in one line of the text for the trainer
_FEED_CHARACTERS = 1 << 16  # characters of such a line, about
Notify = Callable[[str], None]
"""Called with the name of each part of a training that takes long, when it begins."""


def train_wordpiece(texts: Iterable[str], *, vocab_size: int = DEFAULT_VOCAB_SIZE, cased: bool = True) -> Tokenizer:
    """Train a BERT vocabulary (WordPiece: Schuster and Nakajima 2012; Wu et al. 2016, section 4.1).

    Memory grows with the number of different words. The text is brought into Unicode's composed form (NFC) first;
    texts that are tokenized later have to be composed as well.

    Args:
        texts: The texts to learn from, read once.
        vocab_size: Largest number of pieces, special ones counted; a small text yields fewer.
        cased: Whether upper case and accents are kept. If not, text is lower-cased and accents are dropped, as in
            bert-base-uncased; if it has Hangul, characters are composed again, so that syllables stay whole.

    Raises:
        ConfigError: An option is out of its range.
        DataError: The text has no words, or too many different characters for ``vocab_size``.
    """
    spans = Counter(chain.from_iterable(map(wordpiece_spans, texts)))
    return train_wordpiece_on(spans.items(), vocab_size=vocab_size, cased=cased)


def wordpiece_spans(text: str) -> Iterator[str]:
    """Yield the parts of a text that WordPiece is trained on: spans between white space, composed."""
    return kinds.split_spans(compose(text))


@kinds.panics_as_errors("vocabulary")
def train_wordpiece_on(
    spans: Iterable[tuple[str, int]],
    *,
    vocab_size: int = DEFAULT_VOCAB_SIZE,
    spare_pieces: int = 0,
    cased: bool = True,
    notify: Notify = lambda text: None,
) -> Tokenizer:
    """Train WordPiece on counted text.

    Args:
        spans: What `wordpiece_spans` yields, each with how often it occurs; read twice.
        vocab_size: As for `train_wordpiece`.
        spare_pieces: How many of them, ``[unused0]`` and on, are reserved: they follow the special pieces, and the
            others are the pieces of a vocabulary that is smaller by as many.
        cased: As for `train_wordpiece`.
        notify: Called at the beginning of each part that takes long.

    Raises:
        ConfigError: An option is out of its range.
        DataError: There are no words, or too many different characters for ``vocab_size``.
    """
    special, spare = kinds.WORDPIECE.names, spare_names(spare_pieces)
    reserved = len(special) + len(spare)
    if vocab_size <= reserved:
        raise ConfigError(f"vocab_size={vocab_size} must be above {reserved}, the number of special and spare pieces.")
    composes = not cased and any(has_hangul(span) for span, _ in spans)
    options = kinds.TextOptions(do_lower_case=not cased, strip_accents=not cased, compose=composes)
    # From here on the text is a table of words. It is in the order of code points, so the order of documents and the
    # number of threads that read them cannot change an id.
    notify("words are normalised and split at punctuation")
    words = _split_words(spans, options)
    if not len(words):
        raise DataError("vocabulary: the text has no words. Give documents that hold text.")
    initial, inside = choose_alphabet(words, vocab_size - reserved, spare_pieces=len(spare))
    notify(f"{len(words):,} words are read by the trainer, then pieces are learned")
    merged = _train_pieces(words, initial, [*special, *inside], vocab_size - len(spare))
    vocabulary = {piece: index for index, piece in enumerate([*special, *spare, *initial, *inside, *merged])}
    backend = kinds.build_backend(vocabulary, options)
    mark_spare(backend, spare, keeps_spaces=False)
    return Tokenizer(backend, where="trained vocabulary")


def train_byte_bpe(texts: Iterable[str], *, vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE vocabulary (Sennrich et al. 2016; Radford et al. 2019), special pieces as in RoBERTa.

    Every text can be written with it: the 256 bytes are pieces. A word keeps the space before it. Memory grows with the
    number of different words.

    Args:
        texts: The texts to learn from, read once. They are brought into Unicode's composed form (NFC) first, and all
            white space becomes single spaces.
        vocab_size: Largest number of pieces, special ones counted; a small text yields fewer.

    Raises:
        ConfigError: An option is out of its range.
        DataError: The text has no words that repeat.
    """
    spans = Counter(chain.from_iterable(map(byte_bpe_spans, texts)))
    return train_byte_bpe_on(spans.items(), vocab_size=vocab_size)


def byte_bpe_spans(text: str) -> Iterator[str]:
    """Yield the parts of a text that byte-level BPE is trained on: words, each with the space before it, composed."""
    for number, word in enumerate(kinds.words_of(without_endless_words(compose(text))[0])):
        yield f" {word}" if number else word


@kinds.panics_as_errors("vocabulary")
def train_byte_bpe_on(
    spans: Iterable[tuple[str, int]], *, vocab_size: int, spare_pieces: int = 0, notify: Notify = lambda text: None
) -> Tokenizer:
    """Train byte-level BPE on counted text.

    Args:
        spans: What `byte_bpe_spans` yields, each with how often it occurs.
        vocab_size: As for `train_byte_bpe`.
        spare_pieces: As for `train_wordpiece_on`.
        notify: Called at the beginning of each part that takes long.

    Raises:
        ConfigError: An option is out of its range.
        DataError: No word repeats.
    """
    names = kinds.BYTE_BPE.names
    special = [names.cls, names.pad, names.sep, names.unk, names.mask]  # RoBERTa's order: the padding has id 1
    spare, alphabet = spare_names(spare_pieces), sorted(pre_tokenizers.ByteLevel.alphabet())
    least = len(special) + len(spare) + len(alphabet)
    if vocab_size < least:
        spared = f", {spare_pieces:,} spare pieces" if spare else ""
        raise ConfigError(f"vocab_size={vocab_size} must be {least} at least: 256 bytes, 5 special pieces{spared}.")
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(spare),
        min_frequency=_MIN_FREQUENCY,
        special_tokens=special,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    trained = tokenizers.Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    notify("words are read by the trainer, then pieces are learned")
    trained.train_from_iterator(_repeat(spans), trainer)
    model = json.loads(trained.to_str())["model"]
    if not model["merges"]:
        raise DataError("vocabulary: the text has no words that repeat. Give documents that hold more text.")
    learned = sorted(model["vocab"], key=model["vocab"].__getitem__)[len(special) :]
    vocabulary = {piece: index for index, piece in enumerate([*special, *spare, *learned])}
    backend = kinds.build_byte_bpe(vocabulary, [tuple(pair) for pair in model["merges"]], names, add_prefix_space=False)
    kinds.put_template(backend, vocabulary, names)  # as instances are written: one separator, and segments
    mark_spare(backend, spare, keeps_spaces=True)
    return Tokenizer(backend, where="trained vocabulary")


def _repeat(spans: Iterable[tuple[str, int]]) -> Iterator[str]:
    """Yield each span as often as it occurs, in lines of bounded length.

    The trainers take text, not counts; a frequent word in one line would be a string of gigabytes.
    """
    for span, occurrences in spans:
        # One after the other they are running text, but for the first word of a text, which has no space before it.
        most = max(1, min(_FEED_WORDS, _FEED_CHARACTERS // len(span))) if span[0] == " " else 1
        full, rest = divmod(occurrences, most)
        for _ in range(full):
            yield span * most
        if rest:
            yield span * rest


def without_endless_words(text: str) -> tuple[str, int]:
    """Return a text without words of thousands of characters, which teach a vocabulary nothing, and their number."""
    if len(text) <= MAX_TRAINED_WORD or max(map(len, kinds.words_of(text)), default=0) <= MAX_TRAINED_WORD:
        return text, 0
    count = 0

    def shortened(match: re.Match[str]) -> str:
        nonlocal count
        is_endless = len(match[0]) > MAX_TRAINED_WORD
        count += is_endless
        return "" if is_endless else match[0]

    return _LONG_SPANS.sub(lambda span: _RUNS.sub(shortened, span[0]), text), count


class CountedWords:
    """Words or spans with how often each occurs, in the memory of their letters; read as often as is wanted."""

    def __init__(self, table: pa.Table) -> None:
        """Take a table with the columns ``span`` and ``count``, each span once."""
        self._table = table

    @classmethod
    def of(cls, counts: Mapping[str, int]) -> Self:
        """Take the counts of a mapping."""
        return cls(pa.table({"span": pa.array(counts, pa.string()), "count": pa.array(counts.values(), pa.int64())}))

    def __len__(self) -> int:
        return self._table.num_rows

    def __iter__(self) -> Iterator[tuple[str, int]]:
        for batch in self._table.to_batches(max_chunksize=_WORDS_PER_BATCH):
            yield from zip(batch["span"].to_pylist(), batch["count"].to_pylist(), strict=True)

    def plus(self, other: "CountedWords") -> "CountedWords":
        """Return the sums of both."""
        return CountedWords(add_up_counts(pa.concat_tables([self._table, other._table]), ["span"]))

    def sorted(self) -> "CountedWords":
        """Return the words in the order of code points, which is the order of their bytes in UTF-8."""
        return CountedWords(self._table.sort_by("span"))


def add_up_counts(table: pa.Table, names: list[str]) -> pa.Table:
    """Return the sums of the column ``count`` over rows with equal names."""
    sums = pa.TableGroupBy(table, names, use_threads=False).aggregate([("count", "sum")])
    return sums.rename_columns(["count" if name == "count_sum" else name for name in sums.column_names])


def _split_words(spans: Iterable[tuple[str, int]], options: kinds.TextOptions) -> CountedWords:
    """Normalise whitespace-separated spans, split them at punctuation, and count the words."""
    normalizer, splitter = kinds.build_normalizer(options), pre_tokenizers.BertPreTokenizer()
    words: Counter[str] = Counter()
    held = CountedWords.of({})
    for span, occurrences in spans:
        for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(span)):
            if len(word) <= kinds.MAX_WORD_CHARACTERS:
                words[word] += occurrences
        if len(words) >= _WORDS_PER_BATCH:  # as Python's strings a million words would take 150 MB
            held = held.plus(CountedWords.of(words))
            words.clear()
    return held.plus(CountedWords.of(words)).sorted()


def _train_pieces(words: CountedWords, initial: list[str], fixed: list[str], vocab_size: int) -> list[str]:
    """Return the pieces longer than a character, in the order in which they were learned.

    The trainer numbers ``##x`` pieces in the order of a hash map with a random seed, and breaks ties between
    equally frequent pairs by these numbers. Passing these pieces as special ones fixes their numbers.

    Args:
        words: How often each word occurs.
        initial: Single characters that begin a word.
        fixed: The special pieces, and the single characters inside a word.
        vocab_size: Largest number of pieces.
    """
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=_MIN_FREQUENCY,
        special_tokens=fixed,
        initial_alphabet=initial,
        limit_alphabet=len(initial),
        continuing_subword_prefix=kinds.CONTINUATION,
        show_progress=False,
    )
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token=kinds.WORDPIECE.names.unk))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.train_from_iterator(_repeat((f" {word}", occurrences) for word, occurrences in words), trainer)
    vocabulary = backend.get_vocab(with_added_tokens=False)
    known = {*fixed, *initial}
    return [piece for piece in sorted(vocabulary, key=vocabulary.__getitem__) if piece not in known]
