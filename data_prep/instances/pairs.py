"""From a bucket of documents to the rows of a shard: pairs as ranges of tokens, then [CLS], [SEP] and masks.

`make_pairs` chooses the pairing. The pairing that makes none is here as well: instances of one segment.
"""

# S sentences of one bucket, numbered from 0

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_prep.documents.arrow_files import make_list, offsets_of
from data_prep.documents.document_set import DocumentSet, tokenizer_of
from data_prep.instances.draws import MASKS, ORDER
from megabert.foundation.randomness.keyed import mix, order_of, string_key
from megabert.tokens.masking import mask_instances
from megabert.tokens.shards.columns import COLUMNS, FlatInstances
from megabert.tokens.shards.format import ShardMetadata, instance_schema, token_type

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


def make_pairs(documents: DocumentSet, bucket: int, options: PairOptions, tokenizer: Path) -> Pairs:
    """Return the pairs of a bucket in the order of the shard, which a random key of each pair decides."""
    from data_prep.instances.balanced import pair_balanced
    from data_prep.instances.google import pair_google

    part, metadata = DocumentBucket(documents, bucket), options.metadata
    if metadata.objective == "none":
        pairs = walk_segments(part, options)
    elif metadata.pairing == "google":
        pairs = pair_google(part, options)
    else:
        pairs = pair_balanced(part, options, tokenizer_of(tokenizer))
    # The pairings walk document by document, so rows of one document are neighbours until here.
    return pairs.take(order_of(mix(pairs.key, ORDER)))


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


def assemble(documents: DocumentSet, pairs: Pairs, metadata: ShardMetadata) -> FlatInstances:
    """Write ``[CLS] A [SEP] B [SEP]`` for each pair, ``[CLS] A [SEP]`` if it has no B; without masks."""
    first_start, first, second_start, second = in_order(pairs, metadata.objective)
    has_second = second > 0
    lengths = first + second + np.where(has_second, 3, 2)
    offsets = offsets_of(lengths)
    begin = offsets[:-1]
    # Specials first. Without B the last two of these are the same [SEP].
    ids = np.empty(int(offsets[-1]), token_type(metadata.vocab_size).to_pandas_dtype())
    ids[begin] = metadata.special_ids["cls"]
    ids[begin + first + 1] = metadata.special_ids["sep"]
    ids[offsets[1:] - 1] = metadata.special_ids["sep"]
    # The text of all sides in one call, which reads each bucket of documents once.
    sides = np.concatenate([first_start, second_start]), np.concatenate([first, second])
    documents.copy_tokens(*sides, ids, np.concatenate([begin + 1, begin + first + 2]))
    no_masks = np.zeros(pairs.size + 1, np.int64)
    return FlatInstances(
        token_starts=offsets,
        input_ids=ids,
        segment_b_starts=np.where(has_second, first + 2, lengths).astype(np.uint16),
        masked_starts=no_masks,
        masked_positions=np.zeros(0, np.uint16),
        masked_id_starts=no_masks,
        masked_ids=ids[:0],
        next_sentence_labels=pairs.label,
        rows=np.arange(pairs.size),
    )


def in_order(pairs: Pairs, objective: str) -> tuple[NDArray[np.int64], ...]:
    """Return start and length of the side written first, then of the second: for sentence order, label 1 swaps them."""
    a, b = (pairs.a_start, pairs.a_length), (pairs.b_start, pairs.b_length)
    is_swapped = (pairs.label == 1) & (objective == "sop")
    return tuple(np.where(is_swapped, other, own) for own, other in zip((*a, *b), (*b, *a), strict=True))


def mask(
    instances: FlatInstances, pairs: Pairs, metadata: ShardMetadata, is_subword: NDArray[np.bool_]
) -> FlatInstances:
    """Choose and mask positions, in place; none if masks are dynamic, that is, drawn by the loader while training."""
    if metadata.masking == "dynamic":
        return instances
    masked = mask_instances(
        instances.input_ids,
        instances.token_starts,
        keys=mix(pairs.key, MASKS),
        pieces=metadata.piece_table(is_subword),
        options=metadata.masking_options,
        is_in_place=True,
    )
    return instances.with_masks(masked)


def to_batch(instances: FlatInstances, metadata: ShardMetadata) -> pa.RecordBatch:
    """Make the record batch of a shard; docs/instances.md lists its columns."""
    arrays = instances._asdict()
    columns = [
        make_list(arrays[column.values], arrays[column.starts]) if column.starts else pa.array(arrays[column.values])
        for column in COLUMNS
    ]
    return pa.record_batch(columns, schema=instance_schema(metadata))
