"""A loop that counts what instances show, over a `megabert.shards.FlatInstances`."""

# T tokens, M predictions, R rows

from megabert.compiled import compiled


@compiled
def count_shown(ids_T, offsets, positions_M, ends_M, originals_M, mask):
    """Return the number of predictions that are shown as [MASK], and of others that are shown unchanged.

    Args:
        ids_T: Ids of all instances, masked.
        offsets: Where each instance starts.
        positions_M: Predicted positions, counted from the start of their instance.
        ends_M: Where each row's predictions end, after a 0.
        originals_M: Ids before masking at the predicted positions.
        mask: Id of [MASK], in the type of the ids.
    """
    as_mask = as_original = 0
    for row in range(len(ends_M) - 1):
        ids = ids_T[offsets[row] : offsets[row + 1]]
        for index in range(ends_M[row], ends_M[row + 1]):
            shown = ids[positions_M[index]]
            as_mask += shown == mask
            as_original += (shown == originals_M[index]) & (shown != mask)
    return as_mask, as_original
