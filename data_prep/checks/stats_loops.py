"""The loop of `data_prep.checks.stats` over the instances of a shard."""

# T tokens, M predictions, I instances of the shard

import numpy as np

from megabert.compiled import compiled


@compiled
def count_rows(ids_T, offsets, positions_M, originals_M, ends, labels_I, pieces, histogram):
    """Count what the manifest says of a shard.

    Args:
        ids_T: Ids of all instances.
        offsets: Where each instance starts, and the end.
        positions_M: Predicted positions.
        originals_M: Their ids before masking.
        ends: Where each instance's predictions start, and the end.
        labels_I: 1 for a random or swapped B.
        pieces: [MASK], [UNK], tokens of an instance at most.
        histogram: Added to: instances by length, in as many even ranges.

    Returns:
        Labels of 1 and their tokens; instances of full length; predictions shown as [MASK], as they were; [UNK]s.
    """
    mask, unknown, longest = ids_T.dtype.type(pieces[0]), ids_T.dtype.type(pieces[1]), pieces[2]
    ones = one_tokens = full = masks = same = unknowns = 0
    for row in range(len(labels_I)):
        here = ids_T[offsets[row] : offsets[row + 1]]
        length = len(here)
        if labels_I[row] == 1:
            ones += 1
            one_tokens += length
        full += length == longest
        histogram[(length - 1) * len(histogram) // longest] += 1
        for index in range(length):
            unknowns += here[index] == unknown
        for index in range(ends[row], ends[row + 1]):
            token = here[np.int64(positions_M[index])]
            masks += token == mask
            same += (token == originals_M[index]) & (token != mask)
    return ones, one_tokens, full, masks, same, unknowns
