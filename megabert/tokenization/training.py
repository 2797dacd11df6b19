"""Train a WordPiece or byte-level BPE vocabulary; the same text always gives the same ids.

The alphabet is as large as the text needs (see ``alphabet``), and Hangul syllables are kept whole.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from megabert.errors import ConfigError, DataError
from megabert.tokenization.alphabet import Alphabet, choose_alphabet, compose, has_hangul
from megabert.tokenization.backend import (
    CONTINUATION,
    MAX_WORD_CHARACTERS,
    TextOptions,
    build_backend,
    build_byte_bpe,
    build_normalizer,
)
from megabert.tokenization.kinds import BYTE_BPE
from megabert.tokenization.special_tokens import SpecialNames
from megabert.tokenization.tokenizer import Tokenizer

DEFAULT_VOCAB_SIZE = 30_522
DEFAULT_BYTE_BPE_SIZE = 50_265
_FEED_WORDS = 4096  # occurrences of a word in one line of the text for the trainer


def train_wordpiece(
    texts: Iterable[str],
    *,
    vocab_size: int = DEFAULT_VOCAB_SIZE,
    cased: bool = True,
    strip_accents: bool | None = None,
    min_frequency: int = 2,
) -> Tokenizer:
    """Train a BERT vocabulary (WordPiece: Schuster and Nakajima 2012; Wu et al. 2016, section 4.1).

    Memory grows with the number of different words. The text is brought into Unicode's composed form (NFC) first;
    texts that are tokenized later have to be composed as well.

    Args:
        texts: The texts to learn from, read once.
        vocab_size: Largest number of pieces, special ones counted; a small text yields fewer.
        cased: Whether upper case is kept. If not, text is lower-cased as in bert-base-uncased.
        strip_accents: Whether accents are dropped; by default they are dropped with the case. If the text has Hangul,
            characters are composed again afterwards, so that syllables stay whole.
        min_frequency: Pairs of pieces that occur less often are not merged.

    Raises:
        ConfigError: An option is out of its range.
        DataError: The text has no words, or too many different characters for ``vocab_size``.
    """
    names = SpecialNames()
    special = list(asdict(names).values())
    if vocab_size <= len(special):
        raise ConfigError(f"vocab_size={vocab_size} must be above {len(special)}, the number of special pieces.")
    if min_frequency < 1:
        raise ConfigError(f"min_frequency={min_frequency} must be at least 1; the default is 2.")
    # Counting whitespace-separated spans first keeps the text itself out of memory.
    spans: Counter[str] = Counter()
    for text in texts:
        spans.update(compose(text).split())
    strip = strip_accents if strip_accents is not None else not cased
    options = TextOptions(
        do_lower_case=not cased, strip_accents=strip, compose=strip and any(has_hangul(span) for span in spans)
    )
    words = _split_words(spans, options)
    if not words:
        raise DataError("vocabulary: the text has no words. Give documents that hold text.")
    alphabet = choose_alphabet(words, vocab_size - len(special))
    merged = _train_pieces(words, alphabet, special, vocab_size=vocab_size, min_frequency=min_frequency)
    pieces = [*special, *alphabet.initial, *alphabet.inside, *merged]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    return Tokenizer(build_backend(vocabulary, options, names), names=names, where="trained vocabulary")


def train_byte_bpe(
    texts: Iterable[str], *, vocab_size: int = DEFAULT_BYTE_BPE_SIZE, min_frequency: int = 2
) -> Tokenizer:
    """Train a byte-level BPE vocabulary (Sennrich et al. 2016; Radford et al. 2019), special pieces as in RoBERTa.

    Every text can be written with it: the 256 bytes are pieces. A word keeps the space before it.

    Args:
        texts: The texts to learn from, read once. They are brought into Unicode's composed form (NFC) first, and all
            white space becomes single spaces.
        vocab_size: Largest number of pieces, special ones counted; a small text yields fewer.
        min_frequency: Pairs of pieces that occur less often are not merged.

    Raises:
        ConfigError: An option is out of its range.
        DataError: The text has no words that repeat.
    """
    names = BYTE_BPE.names
    special = [names.cls, names.pad, names.sep, names.unk, names.mask]  # RoBERTa's order: the padding has id 1
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if vocab_size < len(special) + len(alphabet):
        raise ConfigError(
            f"vocab_size={vocab_size} must be {len(special) + len(alphabet)} at least: 256 bytes, 5 special pieces."
        )
    if min_frequency < 1:
        raise ConfigError(f"min_frequency={min_frequency} must be at least 1; the default is 2.")
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=special,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    trained = tokenizers.Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.train_from_iterator((" ".join(compose(text).split()) for text in texts), trainer)
    model = json.loads(trained.to_str())["model"]
    if not model["merges"]:
        raise DataError("vocabulary: the text has no words that repeat. Give documents that hold more text.")
    backend = build_byte_bpe(model["vocab"], [tuple(pair) for pair in model["merges"]], names, add_prefix_space=False)
    return Tokenizer(backend, names=names, where="trained vocabulary")


def _split_words(spans: Counter[str], options: TextOptions) -> dict[str, int]:
    """Normalise whitespace-separated spans, split them at punctuation, and count the words, in order of code points."""
    normalizer, splitter = build_normalizer(options), pre_tokenizers.BertPreTokenizer()
    words: Counter[str] = Counter()
    for span, occurrences in spans.items():
        for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(span)):
            if len(word) <= MAX_WORD_CHARACTERS:
                words[word] += occurrences
    return dict(sorted(words.items()))


def _train_pieces(
    words: dict[str, int], alphabet: Alphabet, special: list[str], *, vocab_size: int, min_frequency: int
) -> list[str]:
    """Return the pieces longer than a character, in the order in which they were learned.

    The trainer numbers ``##x`` pieces in the order of a hash map with a random seed, and breaks ties between
    equally frequent pairs by these numbers. Passing these pieces as special ones fixes their numbers.
    """
    fixed = [*special, *alphabet.inside]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=fixed,
        initial_alphabet=list(alphabet.initial),
        limit_alphabet=len(alphabet.initial),
        continuing_subword_prefix=CONTINUATION,
        show_progress=False,
    )
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token=special[1]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.train_from_iterator(_repeat(words), trainer)
    vocabulary = backend.get_vocab(with_added_tokens=False)
    known = {*fixed, *alphabet.initial}
    return [piece for piece in sorted(vocabulary, key=vocabulary.__getitem__) if piece not in known]


def _repeat(words: dict[str, int]) -> Iterator[str]:
    """Yield each word as often as it occurs, in lines of bounded length."""
    for word, occurrences in words.items():
        full, rest = divmod(occurrences, _FEED_WORDS)
        for _ in range(full):
            yield f"{word} " * _FEED_WORDS
        yield f"{word} " * rest
