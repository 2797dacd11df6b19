"""What every pairing takes and makes: options, a bucket of documents, and pairs as ranges of tokens.

The pairing that makes none is here as well: instances of one segment.
"""

# I instances, S sentences of one bucket, numbered from 0

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_prep.documents.document_set import DocumentSet
from megabert.foundation.randomness.keyed import mix, order_of, string_key
from megabert.tokens.shards.format import ShardMetadata

Integers = NDArray[np.int64]

PAIR_SPECIALS = 3
"""[CLS] A [SEP] B [SEP]."""
ONE_SEGMENT_SPECIALS = 2
"""[CLS] text [SEP]."""
PARTNER_TOKENS = 2_000_000
"""The part of the split that a unit's random Bs come from holds at least so many tokens: all of a smaller split. At
length 512 these are 2,000 pairs that exchange, among which nearly every one finds a B of exactly its own length."""


@dataclass(frozen=True, kw_only=True)
class PairOptions:
    """Everything that the pairs of one pass over one bucket depend on, besides the documents."""

    metadata: ShardMetadata
    """Objective, pairing, length and seed are read from it."""
    short_seq_prob: float
    """Share of the instances (google: of the documents) that want a shorter, random length."""
    pass_number: int
    """Number of the pass: the text is paired ``dupe_factor`` times."""
    min_tokens: int = 0
    """Documents with fewer tokens give no instance."""
    holds_ids: bool = False
    """Whether documents are lists of ids: one list, or the two of a pair."""

    @property
    def key(self) -> NDArray[np.uint64]:
        """Key of all draws of one pass for one length."""
        return mix(self.metadata.seed, string_key("instances"), self.metadata.max_seq_length, self.pass_number)


@dataclass(frozen=True)
class DocumentBucket:
    """The documents that first segments come from; tokens are numbered over the whole split."""

    documents: DocumentSet
    """The whole split."""
    number: int
    """Number of the bucket in the split."""

    @cached_property
    def document_keys(self) -> NDArray[np.uint64]:
        """Random key of each document."""
        return self.documents.document_keys(self.number)

    @cached_property
    def document_starts(self) -> Integers:
        """First sentence of each document, and the end of the last."""
        return self.documents.sentences(self.number)[0]

    @cached_property
    def starts_S(self) -> Integers:
        """First token of each sentence, numbered over the split, and the end of the last: one longer than S."""
        return self.documents.sentences(self.number)[1]

    @cached_property
    def document_S(self) -> Integers:
        """Document of each sentence, from 0 in the bucket."""
        return np.repeat(np.arange(len(self.document_starts) - 1), np.diff(self.document_starts))

    def document_of(self, tokens: Integers) -> Integers:
        """Return the document of each token of the bucket, from 0."""
        return np.searchsorted(self.starts_S[self.document_starts], tokens, side="right") - 1

    def keys_S(self, options: PairOptions) -> NDArray[np.uint64]:
        """Return a key for each sentence as the start of an instance, from its document and its number in it."""
        sentence = np.arange(len(self.document_S)) - self.document_starts[self.document_S]
        return mix(options.key, self.document_keys[self.document_S], sentence)


class Pairs(NamedTuple):
    """Pairs as ranges of tokens over the split, one element of each array per pair; a single segment has an empty B.

    A NamedTuple, so that a compiled loop can take it. `data_prep.instances.balanced_loops` opens with an example.
    """

    a_start: Integers
    """First token of A."""
    a_end: Integers
    """The token after A."""
    b_start: Integers
    """First token of B: of the text after A, until a random B takes its place."""
    b_end: Integers
    """The token after B."""
    label: NDArray[np.uint8]
    """1: B is random or, for sentence order, the sides are swapped."""
    key: NDArray[np.uint64]
    """Key of the pair's further draws: its cuts, its masks and its place in the shard."""

    @property
    def size(self) -> int:
        """Number of pairs."""
        return len(self.key)

    @property
    def a_length(self) -> Integers:
        """Tokens of each A."""
        return self.a_end - self.a_start

    @property
    def b_length(self) -> Integers:
        """Tokens of each B."""
        return self.b_end - self.b_start

    def count_text(self, *, with_random: bool) -> int:
        """Return how many tokens of the text are in some pair, each counted once, with or without random Bs."""
        rows = slice(None) if with_random else self.label == 0
        starts, ends = (
            np.concatenate([a, b[rows]]) for a, b in ((self.a_start, self.b_start), (self.a_end, self.b_end))
        )
        order = order_of(starts)
        seen = np.maximum.accumulate(ends[order])
        new = seen - np.maximum(starts[order], np.concatenate([starts[order[:1]], seen[:-1]]))
        return int(np.maximum(new, 0).sum())

    @classmethod
    def join(cls, parts: "list[Pairs]") -> "Pairs":
        """Return the pairs of several buckets, one bucket after the other."""
        return cls._make(map(np.concatenate, zip(*parts, strict=True)))

    def take(self, rows: NDArray[np.integer] | slice) -> "Pairs":
        """Return a copy of some of the pairs, in the order of ``rows``."""
        return Pairs._make(np.array(column[rows]) for column in self)


def walk_segments(bucket: DocumentBucket, options: PairOptions) -> Pairs:
    """Make instances of one segment: whole sentences of one document (Liu et al. 2019, DOC-SENTENCES).

    One that is longer than an instance goes on in the next, where the paper loses its rest.
    """
    from data_prep.instances.pair_walk_loops import WalkOptions, walk_documents

    longest = options.metadata.max_seq_length - ONE_SEGMENT_SPECIALS
    key, share, least = options.key[()], options.short_seq_prob, options.min_tokens
    settings = WalkOptions(key, share, longest, False, least, has_whole_words=False, is_paired=False)
    walked = walk_documents(bucket.document_starts, bucket.starts_S, bucket.document_keys, settings)
    starts, stops, keys = walked
    return Pairs(starts, stops, stops, stops, np.zeros(len(starts), np.uint8), keys)
