"""The loop of `data_prep.checks.stats` over the instances of a shard."""

from typing import NamedTuple

from megabert.compiled import compiled


class CountedPieces(NamedTuple):
    """What is counted specially."""

    mask_id: int
    unknown_id: int
    longest: int
    """Tokens of an instance of full length."""


class InstanceCounts(NamedTuple):
    """The counts of a shard, under their names in the manifest."""

    random_next: int
    """Instances whose B is random (sentence order: swapped)."""
    random_next_tokens: int
    """Tokens of these."""
    full_length: int
    """Instances of full length."""
    shown_as_mask: int
    """Predictions that became [MASK]."""
    shown_as_original: int
    """Predictions that were kept as they were."""
    unknown_tokens: int
    """[UNK] among all tokens."""


@compiled
def count_rows(batch, pieces, histogram):
    """Count what the manifest says of a shard.

    Args:
        batch: `data_prep.checks.batch.Batch`.
        pieces: `CountedPieces`.
        histogram: Added to: instances by length, in as many even ranges.

    Returns:
        `InstanceCounts`.
    """
    ids_T, offsets, _, positions_M, ends, originals_M, _, labels_R = batch
    mask_id, unknown_id, longest = pieces
    mask, unknown = ids_T.dtype.type(mask_id), ids_T.dtype.type(unknown_id)
    ones = one_tokens = full = masks = same = unknowns = 0
    for row in range(len(labels_R)):
        ids = ids_T[offsets[row] : offsets[row + 1]]
        length = len(ids)
        if labels_R[row] == 1:
            ones += 1
            one_tokens += length
        full += length == longest
        histogram[(length - 1) * len(histogram) // longest] += 1
        for index in range(length):
            unknowns += ids[index] == unknown
        for index in range(ends[row], ends[row + 1]):
            token = ids[int(positions_M[index])]
            masks += token == mask
            # [MASK] itself may be a word of the text; it counts as masked.
            same += (token == originals_M[index]) & (token != mask)
    return InstanceCounts(ones, one_tokens, full, masks, same, unknowns)
