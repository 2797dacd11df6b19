"""Gathering chosen instances into a packed micro-batch, each token touched once."""

# T packed tokens, M masked positions, B sequences

from megabert.compiled import compiled


@compiled
def gather_rows(columns, rows, place, gathered):
    """Copy instances end to end, and write what follows from where they come to lie.

    Args:
        columns: Of decoded instances: ids, where each starts, where its B starts, masked positions, masked ids, where
            each one's start, labels.
        rows: Which of them, in order.
        place: Sequences, tokens and masked positions that are there already.
        gathered: Written from ``place`` on: ids, positions, segments, ``cu_seqlens``, masked positions in T, masked
            ids, labels.
    """
    ids, starts, b_starts, masked_positions, masked_ids, masked_starts, labels = columns
    ids_T, positions_T, segments_T, cu_seqlens, masked_positions_M, masked_ids_M, labels_B = gathered
    b, t, m = place
    for row in rows:
        length, b_start = starts[row + 1] - starts[row], b_starts[row]
        # Slices: an index that cannot be negative lets the compiler move many tokens at once.
        source, target = ids[starts[row] : starts[row + 1]], ids_T[t : t + length]
        positions, segments = positions_T[t : t + length], segments_T[t : t + length]
        for index in range(length):
            target[index] = source[index]
            positions[index] = index
            segments[index] = index >= b_start
        for index in range(masked_starts[row], masked_starts[row + 1]):
            masked_positions_M[m] = t + masked_positions[index]
            masked_ids_M[m] = masked_ids[index]
            m += 1
        labels_B[b] = labels[row]
        t += length
        b += 1
        cu_seqlens[b] = t
