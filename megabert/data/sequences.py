"""Sequences that are no pre-training instances, as columns and micro-batches: for fine-tuning and for using a model."""

# M masked positions, T tokens of all sequences

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from megabert.data.batch import IGNORED, BatchFormat, MicroBatch, RowBlock, assemble
from megabert.data.shard_set import Columns


def columns_of(
    sequences: Sequence[NDArray[np.integer]],
    segment_b_starts: Sequence[int] | None = None,
    *,
    mask_id: int | None = None,
) -> Columns:
    """Return sequences in the form in which instances are decoded from shards, without labels.

    Args:
        sequences: Ids of each, special tokens included; one or more, none empty.
        segment_b_starts: For each the index of segment B's first token; its length (the default) where there is no B.
        mask_id: Positions that hold this id are the masked positions; None masks nothing.
    """
    lengths = np.array([len(ids) for ids in sequences], np.int64)
    ids_T = np.concatenate(sequences)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    masked_M = np.flatnonzero(ids_T == mask_id) if mask_id is not None else np.empty(0, np.int64)
    sequence_M = np.searchsorted(starts, masked_M, side="right") - 1
    return Columns(
        input_ids=ids_T,
        token_starts=starts,
        segment_b_starts=lengths if segment_b_starts is None else np.asarray(segment_b_starts, np.int64),
        masked_positions=masked_M - starts[sequence_M],
        masked_ids=np.full(len(masked_M), IGNORED),
        masked_starts=np.searchsorted(masked_M, starts),
        next_sentence_labels=np.full(len(lengths), IGNORED),
        rows=np.arange(len(lengths)),
    )


def pack_sequences(
    sequences: Sequence[NDArray[np.integer]],
    *,
    segment_b_starts: Sequence[int] | None = None,
    mask_id: int | None = None,
) -> MicroBatch:
    """Pack whole sequences end to end into one micro-batch, without labels and without padding.

    Args:
        sequences: As in `columns_of`.
        segment_b_starts: As in `columns_of`.
        mask_id: Positions that hold this id become the ``masked_positions_M``; with None there is one ignored position.
    """
    columns = columns_of(sequences, segment_b_starts, mask_id=mask_id)
    batch_format = BatchFormat(pad_id=0, max_seq_length=int(columns.lengths.max()), has_labels=False)
    seeds = np.zeros(len(sequences), np.int32)
    return assemble([RowBlock(columns, columns.rows, 0)], columns.rows, seeds, batch_format)
