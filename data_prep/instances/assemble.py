"""From documents to the rows of a shard: pairs, their tokens with [CLS] and [SEP], masks."""

# I instances, T tokens, M predictions, R rows

from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_prep.documents.arrow_files import make_list, offsets_of
from data_prep.documents.document_set import DocumentSet, tokenizer_of
from data_prep.instances.balanced import pair_balanced
from data_prep.instances.draws import MASKS, ORDER
from data_prep.instances.google import pair_google
from data_prep.instances.pairs import DocumentBucket, PairOptions, Pairs, walk_segments
from megabert.foundation.randomness.keyed import mix, order_of
from megabert.tokens.masking import mask_instances
from megabert.tokens.shards.columns import COLUMNS, FlatInstances
from megabert.tokens.shards.format import ShardMetadata, instance_schema, token_type


def make_pairs(documents: DocumentSet, bucket: int, options: PairOptions, tokenizer: Path) -> Pairs:
    """Return the pairs of a bucket in the order of the shard, which a random key of each pair decides."""
    part, metadata = DocumentBucket(documents, bucket), options.metadata
    if metadata.objective == "none":
        pairs = walk_segments(part, options)
    elif metadata.pairing == "google":
        pairs = pair_google(part, options)
    else:
        pairs = pair_balanced(part, options, tokenizer_of(tokenizer))
    # The pairings walk document by document, so rows of one document are neighbours until here.
    return pairs.take(order_of(mix(pairs.key, ORDER)))


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
