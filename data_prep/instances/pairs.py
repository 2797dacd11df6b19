"""What every pairing takes and makes: a bucket of documents, options, and pairs as ranges of tokens."""

# I instances, S sentences of one bucket

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from data_prep.document_set import DocumentSet
from megabert.randomness.keyed import mix, string_key
from megabert.schema import ShardMetadata

Integers = NDArray[np.int64]

SPECIALS_OF_A_PAIR = 3
"""[CLS] A [SEP] B [SEP]."""


@dataclass(frozen=True, kw_only=True)
class PairOptions:
    """What the pairs of one pass over one bucket depend on, besides the documents."""

    objective: str
    """nsp: next sentence prediction; sop: sentence order; none: one segment."""
    pairing: str
    """balanced or google."""
    max_seq_length: int
    """Tokens of an instance at most, special ones counted."""
    short_seq_prob: float
    """Share of the instances (google: of the documents) that want a shorter, random length."""
    seed: int
    duplicate: int
    """Number of the pass: the text is paired ``dupe_factor`` times."""

    @classmethod
    def of(cls, metadata: ShardMetadata, short_seq_prob: float, duplicate: int) -> "PairOptions":
        """Return the options of one pass for shards with this metadata."""
        return cls(
            objective=metadata.objective,
            pairing=metadata.pairing,
            max_seq_length=metadata.max_seq_length,
            short_seq_prob=short_seq_prob,
            seed=metadata.seed,
            duplicate=duplicate,
        )

    @property
    def key(self) -> NDArray[np.uint64]:
        """Key of all draws of one pass for one length."""
        return mix(self.seed, string_key("instances"), self.max_seq_length, self.duplicate)


@dataclass(frozen=True)
class Bucket:
    """The documents that first segments come from, in numbers over the whole split."""

    documents: DocumentSet
    """The whole split."""
    number: int
    """Number of the bucket in the split."""
    document_keys: NDArray[np.uint64]
    """Random key of each document of the bucket."""
    document_starts: Integers
    """First sentence of each document and the end of the last, from 0 in the bucket."""
    starts_S: Integers
    """First token of each sentence, and the end of the last: one longer than S."""
    first_document: int
    """Number of the bucket's first document over the split."""
    first_sentence: int
    """Number of the bucket's first sentence over the split."""

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
        """Return a key for each sentence as the start of an instance, from its document and its number in it."""
        document = self.sentence_document_S - self.first_document
        sentence = self.sentences - self.documents.document_starts_D[self.sentence_document_S]
        return mix(options.key, self.document_keys[document], sentence)


@dataclass(frozen=True)
class Pairs:
    """Instances as ranges of tokens over the split."""

    a_start: Integers
    a_length: Integers
    b_start: Integers
    b_length: Integers
    """0 where there is no B."""
    label: NDArray[np.uint8]
    """1: B is random or, for sentence order, the sides are swapped."""
    key: NDArray[np.uint64]
    """Key of each instance's masks and of its place in the shard."""
    is_b_first: bool = False
    """Whether label 1 means that the second range is written first (sentence order)."""

    def __len__(self) -> int:
        return len(self.a_start)

    def take(self, rows: NDArray[np.integer] | slice) -> "Pairs":
        """Return some of the instances, in the order of ``rows``."""
        names = ("a_start", "a_length", "b_start", "b_length", "label", "key")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})
