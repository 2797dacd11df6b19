"""Train a Unigram vocabulary (Kudo 2018) by SentencePiece; the same text always gives the same ids.

SentencePiece divides the words among its threads and adds up the counts of each, so another number of threads gives
other scores and other pieces; and so does another order of the words. Here they are sorted, and one thread reads them.
`tokenizers` has a trainer too, whose scores differ from run to run.
"""

import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from megabert.foundation.errors import ConfigError, DataError
from megabert.tokens.tokenization import training
from megabert.tokens.tokenization.alphabet import choose_characters
from megabert.tokens.tokenization.composition import compose
from megabert.tokens.tokenization.special_pieces import mark_spare, spare_names
from megabert.tokens.tokenization.tokenizer import Tokenizer
from megabert.tokens.tokenization.tokenizer_kinds import SPACE_MARK, WORDPIECE, build_unigram, words_of

_SETTINGS: dict[str, Any] = {
    "model_type": "unigram",
    "input_format": "tsv",
    "hard_vocab_limit": False,
    "character_coverage": 1.0,
    "normalization_rule_name": "identity",
    "add_dummy_prefix": False,
    "max_sentence_length": 4 * training.MAX_TRAINED_WORD + 64,  # bytes, the count among them
    "num_threads": 1,
    "unk_id": 0,
    "unk_piece": " ",  # no word has a space; by default a text that says <unk> would lose it
    "bos_id": -1,
    "eos_id": -1,
    "pad_id": -1,
    "minloglevel": 2,
}
_SKIPPED = "\u2585\0"
"""SentencePiece skips words that have one of these; the first is its sign of an unknown character."""


def train_unigram(texts: Iterable[str], *, vocab_size: int = training.DEFAULT_VOCAB_SIZE) -> Tokenizer:
    """Train a Unigram vocabulary as SentencePiece has it (Kudo 2018), special pieces as in DeBERTa 2 and 3.

    Case is kept, and a word keeps the space before it. Memory grows with the number of different words.

    Args:
        texts: The texts to learn from, read once.
        vocab_size: Largest number of pieces, special ones counted; a small text yields fewer.

    Raises:
        ConfigError: An option is out of its range.
        DataError: The text has no words, or too many different characters for ``vocab_size``.
    """
    spans = Counter(span for text in texts for span in unigram_spans(text))
    return train_unigram_on(spans.items(), vocab_size=vocab_size)


def unigram_spans(text: str) -> Iterator[str]:
    """Yield the parts of a text that Unigram is trained on: words between white space, composed.

    SentencePiece's mark of a space is a space: a tokenizer reads it so.
    """
    return words_of(training.without_endless_words(compose(text).replace(SPACE_MARK, " "))[0])


def train_unigram_on(
    spans: Iterable[tuple[str, int]],
    *,
    vocab_size: int,
    spare_pieces: int = 0,
    notify: training.Notify = lambda text: None,
) -> Tokenizer:
    """Train Unigram on counted text.

    Args:
        spans: What `unigram_spans` yields, each with how often it occurs; read once.
        vocab_size: As for `train_unigram`.
        spare_pieces: How many of them, ``[unused0]`` and on, are reserved: they follow the special pieces, and the
            others are the pieces of a vocabulary that is smaller by as many.
        notify: Called at the beginning of each part that takes long.

    Raises:
        ConfigError: An option is out of its range.
        DataError: There are no words, or too many different characters for ``vocab_size``.
    """
    special, spare = WORDPIECE.names, spare_names(spare_pieces)
    capacity = vocab_size - len(special) - len(spare)
    if capacity <= 0:
        least = len(special) + len(spare)
        raise ConfigError(f"vocab_size={vocab_size} must be above {least}, the number of special and spare pieces.")
    words = (spans if isinstance(spans, training.CountedWords) else training.CountedWords.of(dict(spans))).sorted()
    counts: Counter[str] = Counter()
    for word, occurrences in words:
        for character in word:
            counts[character] += occurrences
    if not counts.keys() - set(_SKIPPED):
        raise DataError("vocabulary: the text has no words. Give documents that hold text.")
    kept = [SPACE_MARK, *choose_characters(counts, capacity - 1, spare_pieces=spare_pieces)]
    notify(f"{len(words):,} words are read by the trainer, then pieces are learned")
    apart = [character for character in kept if character in _SKIPPED]
    learned = _train(_known_parts(words, kept), capacity - len(apart), [*special, *spare])
    least_score = min((score for _, score in learned), default=0.0)
    backend = build_unigram([*learned, *((character, least_score) for character in apart)], spare)
    mark_spare(backend, spare, keeps_spaces=False)
    return Tokenizer(backend, names=special, where="trained vocabulary")


def _known_parts(words: training.CountedWords, kept: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield the words, each with a mark at its beginning. A character that is not kept cuts a word into two parts.

    A run of thousands of characters without a space, such as a paragraph in Chinese, is cut too: SentencePiece skips a
    line that is longer than it was told.
    """
    letters = "".join(character for character in kept if character not in _SKIPPED)
    known = re.compile(f"[{re.escape(letters)}]{{1,{training.MAX_TRAINED_WORD}}}")
    for word, occurrences in words:
        for part in known.findall(SPACE_MARK + word):
            yield part, occurrences


def _train(words: Iterable[tuple[str, int]], capacity: int, reserved: Iterable[str]) -> list[tuple[str, float]]:
    """Return at most so many pieces with the logarithms of their probabilities, from the most likely one on."""
    import sentencepiece  # only a training needs it

    written = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(f"{word}\t{occurrences}" for word, occurrences in words),
            model_writer=written,
            vocab_size=capacity + 1,  # its own unknown piece is not taken over
            **_SETTINGS,
        )
    except RuntimeError as error:
        raise DataError(
            f"vocabulary: SentencePiece cannot train on this text ({error}). Give more text, or another vocab_size."
        ) from None
    model = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    pieces = ((model.id_to_piece(index), model.get_score(index)) for index in range(1, model.get_piece_size()))
    taken = set(reserved)
    return [(piece, score) for piece, score in pieces if piece not in taken]
