"""Train a vocabulary, or check an existing one, and measure it on text that it has not seen.

Documents stream by once: the held-out ones are kept aside (`data_prep.vocabulary.quality`), all others are trained on
or, for an existing tokenizer, skipped.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from data_prep.execution.work_units import release_memory
from data_prep.vocabulary.quality import HeldOut, VocabularyReport, measure
from megabert.tokens.tokenization import Pieces, Tokenizer, train_unigram_on, training, unigram_spans


@dataclass(frozen=True, kw_only=True)
class VocabularyOptions:
    """How to train a vocabulary and on which documents to measure it."""

    pieces: Pieces = "wordpiece"
    """WordPiece ("wordpiece"), byte-level BPE ("byte_bpe") or SentencePiece's Unigram ("unigram")."""
    vocab_size: int = training.DEFAULT_VOCAB_SIZE
    """Number of pieces at most, special and spare ones counted."""
    spare_pieces: int = 0
    """Number of them that are reserved as ``[unused0]`` and on."""
    uncased: bool = False
    """Lower-case the text and strip accents; Hangul syllables stay whole. Of WordPiece alone."""
    held_out_share: float = 0.05
    """Share of the documents that is not trained on but measured, chosen by a hash of their id."""
    seed: int = 0
    """Another seed holds out other documents."""


def train_vocabulary(
    documents: Iterable[tuple[str, str]], options: VocabularyOptions
) -> tuple[Tokenizer, VocabularyReport]:
    """Train a vocabulary on all but a held-out part of the documents and measure it there.

    Nothing is written; save the tokenizer after `require_bars` let the report pass.

    Args:
        documents: (id, text) of each document, read once. Which are held out depends on ids and seed alone.
        options: Size, case, share held out.

    Raises:
        DataError: There is no text, or it has too many different characters for the size.
    """
    held_out = HeldOut(share=options.held_out_share, seed=options.seed)
    texts = held_out.take_rest(documents)
    spans = Counter(chain.from_iterable(spans_of(text, options) for text in texts))
    held_out.all_characters += count_characters(spans.items())
    return train_on_spans(spans.items(), held_out, options)


def count_characters(spans: Iterable[tuple[str, int]]) -> Counter[str]:
    """Return how often each character occurs in counted spans, outside of endless words and white space."""
    counts: Counter[str] = Counter()
    for span, count in spans:
        for character in training.without_endless_words(span)[0]:
            counts[character] += count
    return counts


TRAINERS: dict[Pieces, tuple[Callable[[str], Iterator[str]], Callable[..., Tokenizer]]] = {
    "wordpiece": (training.wordpiece_spans, training.train_wordpiece_on),
    "byte_bpe": (training.byte_bpe_spans, training.train_byte_bpe_on),
    "unigram": (unigram_spans, train_unigram_on),
}
"""The spans of a text that are counted and the training on their counts, by kind of vocabulary."""


def spans_of(text: str, options: VocabularyOptions) -> Iterator[str]:
    """Yield the parts of a text that are counted for a training."""
    return TRAINERS[options.pieces][0](text)


def train_on_spans(
    spans: Iterable[tuple[str, int]],
    held_out: HeldOut,
    options: VocabularyOptions,
    notify: training.Notify = lambda text: None,
) -> tuple[Tokenizer, VocabularyReport]:
    """Train a vocabulary on counted text and measure it.

    Args:
        spans: The spans (`spans_of`) of all documents that are trained on, each with its count; read twice.
        held_out: The other documents, and the counts of all.
        options: Size, spare pieces and case.
        notify: Is told what begins.
    """
    case = {"cased": not options.uncased} if options.pieces == "wordpiece" else {}
    sizes = {"vocab_size": options.vocab_size, "spare_pieces": options.spare_pieces}
    tokenizer = TRAINERS[options.pieces][1](spans, **sizes, notify=notify, **case)
    release_memory()  # the trainer's memory
    return tokenizer, measure(tokenizer, held_out)


def check_vocabulary(
    tokenizer: Tokenizer, documents: Iterable[tuple[str, str]], options: VocabularyOptions
) -> VocabularyReport:
    """Measure an existing tokenizer on the documents that `train_vocabulary` would hold out.

    Args:
        tokenizer: Any tokenizer.
        documents: (id, text) of each document, read once.
        options: Only the held-out share and the seed matter.

    Raises:
        DataError: There is no text.
    """
    held_out = HeldOut(share=options.held_out_share, seed=options.seed)
    for text in held_out.take_rest(documents):
        held_out.all_characters.update(training.without_endless_words(text)[0])
    return measure(tokenizer, held_out)
