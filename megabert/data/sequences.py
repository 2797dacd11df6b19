"""Packed micro-batches of texts that are no training instances: for looking at a model and for using it."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from megabert.data.batch import IGNORED, BatchFormat, MicroBatch, Piece, assemble
from megabert.data.shard_set import Columns


def pack_sequences(
    sequences: Sequence[NDArray[np.integer]],
    *,
    segment_b_starts: Sequence[int] | None = None,
    mask_id: int | None = None,
) -> MicroBatch:
    """Pack whole sequences end to end, without labels and without padding.

    Args:
        sequences: Ids of each, special ones included; one or more, none empty.
        segment_b_starts: For each the index of segment B's first token; its length where there is no B (the default).
        mask_id: The places of this id are the ``masked_positions_M``; None predicts nothing (one ignored place).
    """
    lengths = np.array([len(ids) for ids in sequences], np.int64)
    ids_T = np.concatenate(sequences).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    places_M = np.flatnonzero(ids_T == mask_id) if mask_id is not None else np.empty(0, np.int64)
    row_M = np.searchsorted(starts, places_M, side="right") - 1
    rows = np.arange(len(lengths))
    columns = Columns(
        input_ids=ids_T,
        token_starts=starts,
        segment_b_starts=lengths if segment_b_starts is None else np.asarray(segment_b_starts, np.int64),
        masked_positions=places_M - starts[row_M],
        masked_ids=np.full(len(places_M), IGNORED),
        masked_starts=np.searchsorted(places_M, starts),
        next_sentence_labels=np.full(len(lengths), IGNORED),
        rows=rows,
    )
    batch_format = BatchFormat(pad_id=0, max_seq_length=int(lengths.max()), has_labels=False)
    return assemble([Piece(columns, rows, 0)], rows, np.zeros(len(rows), np.int32), batch_format)
