"""What every pairing makes and shares: pairs as ranges of tokens, target lengths, walks, truncation."""

# I instances, S sentences of one bucket

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from data_prep.steps.step5_bucket import DocumentSet
from megabert.randomness.keyed import below, mix, string_key, uniform

Integers = NDArray[np.int64]

SPECIALS_OF_A_PAIR = 3
"""[CLS] A [SEP] B [SEP]."""
# Names of the draws under a sentence's or document's key.
SHORT, TARGET, SPLIT_POINT, IS_RANDOM, MASKS, ORDER, LABELS, CANDIDATE, START, TRUNCATE, DIRECTION = range(11)


@dataclass(frozen=True, kw_only=True)
class PairOptions:
    """What a pairing goes by."""

    objective: str
    pairing: str
    max_seq_length: int
    short_seq_prob: float
    seed: int
    duplicate: int

    @property
    def key(self) -> NDArray[np.uint64]:
        """Key of all draws of one pass for one length."""
        return mix(self.seed, string_key("instances"), self.max_seq_length, self.duplicate)


@dataclass(frozen=True)
class Bucket:
    """The documents that first segments come from, in numbers over the whole split."""

    documents: DocumentSet
    number: int
    document_keys: NDArray[np.uint64]
    """Random key of each document of the bucket."""
    document_starts: Integers
    """First sentence of each document and the end of the last, from 0 in the bucket."""
    starts_S: Integers
    """First token of each sentence, and the end of the last: one longer than S."""
    first_document: int
    first_sentence: int

    @classmethod
    def of(cls, documents: DocumentSet, number: int) -> "Bucket":
        """Read the part of the index that belongs to a bucket."""
        (first_d, first_s, _), (last_d, last_s, _) = documents.bucket_starts[number : number + 2].tolist()
        return cls(
            documents,
            number,
            documents.document_keys(number),
            np.asarray(documents.document_starts_D[first_d : last_d + 1]) - first_s,
            np.asarray(documents.sentence_starts_S[first_s : last_s + 1]),
            first_d,
            first_s,
        )

    @cached_property
    def sentence_document_S(self) -> Integers:
        """Document (over the split) of each sentence of the bucket."""
        documents = np.arange(self.first_document, self.first_document + len(self.document_keys))
        return np.repeat(documents, np.diff(self.document_starts))

    @cached_property
    def ends_S(self) -> Integers:
        """Sentence (over the split) at which each sentence's document ends."""
        return np.repeat(self.document_starts[1:] + self.first_sentence, np.diff(self.document_starts))

    @property
    def sentences(self) -> Integers:
        """Numbers of the bucket's sentences over the split."""
        return np.arange(self.first_sentence, self.first_sentence + len(self.starts_S) - 1)

    def keys_S(self, options: PairOptions) -> NDArray[np.uint64]:
        """Return a key for each sentence as the start of an instance: of its document and its place in it."""
        document = self.sentence_document_S - self.first_document
        place = self.sentences - self.documents.document_starts_D[self.sentence_document_S]
        return mix(options.key, self.document_keys[document], place)


@dataclass(frozen=True)
class Pairs:
    """Instances as ranges of tokens over the split."""

    a_start: Integers
    a_length: Integers
    b_start: Integers
    b_length: Integers
    """0 where there is no B."""
    label: NDArray[np.uint8]
    key: NDArray[np.uint64]
    """Of each instance's masks and place."""
    is_b_first: bool = False
    """Sentence order objective: whether label 1 means that the second range is written first."""

    def __len__(self) -> int:
        return len(self.a_start)

    def take(self, rows: NDArray[np.integer] | slice) -> "Pairs":
        """Return some of the instances, in the order of ``rows``."""
        return Pairs(
            self.a_start[rows],
            self.a_length[rows],
            self.b_start[rows],
            self.b_length[rows],
            self.label[rows],
            self.key[rows],
            self.is_b_first,
        )


def draw_targets(keys: NDArray[np.uint64], options: PairOptions, longest: int) -> Integers:
    """Draw the wanted number of tokens: ``longest``, or with ``short_seq_prob`` 2 to ``longest``, each as likely."""
    is_short = uniform(mix(keys, SHORT)) < options.short_seq_prob
    return np.where(is_short, 2 + below(mix(keys, TARGET), longest - 1), longest)


def walk(bucket: Bucket, following: Integers) -> Integers:
    """Return the sentences of the bucket (from 0) that instances start at.

    Args:
        bucket: Its documents are walked one by one.
        following: Of each sentence, the one that the next instance would start at.
    """
    from data_prep.array_loops import follow

    return follow(following - bucket.first_sentence, bucket.ends_S - bucket.first_sentence)


def first_reaching(bucket: Bucket, tokens: Integers) -> Integers:
    """Return the end (a sentence number) of the shortest run from each sentence with at least so many tokens."""
    wanted = bucket.starts_S[:-1] + tokens
    end = np.searchsorted(bucket.starts_S, wanted) + bucket.first_sentence
    return np.minimum(np.maximum(end, bucket.sentences + 1), bucket.ends_S)


def excess_by_side(a: Integers, b: Integers, limit: Integers | int) -> tuple[Integers, Integers]:
    """Return how many tokens to take from A and B so that both fit.

    The longer side is shortened token by token, B on a tie (google-research/bert ``truncate_seq_pair``); closed form.
    """
    excess = np.maximum(a + b - limit, 0)
    from_a = np.minimum(excess, np.maximum(a - b, 0))
    from_b = np.minimum(excess, np.maximum(b - a, 0))
    rest = excess - from_a - from_b
    return from_a + rest // 2, from_b + (rest + 1) // 2
