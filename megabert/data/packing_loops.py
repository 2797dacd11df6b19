"""The loop that fills the bins of a rank."""

# T packed tokens, M masked positions, B sequences

from megabert.foundation.compiled import compiled


@compiled
def gather_rows(columns, rows, packed):
    """Copy instances end to end, and compute the positions, segments and offsets that follow from their lengths.

    Args:
        columns: ``FlatInstances``, the decoded instances.
        rows: Int64, the instances to copy, in order.
        packed: ``PackedArrays``, written; as large as these instances.
    """
    t = m = 0
    packed.cu_seqlens[0] = 0
    for b, row in enumerate(rows):
        start, stop = columns.token_starts[row], columns.token_starts[row + 1]
        length, b_start = stop - start, columns.segment_b_starts[row]

        # Tokens, positions from 0, and segments: 0 before the first token of B, 1 from there on. These are slices,
        # because an index that cannot be negative lets the compiler move many tokens at once.
        source, target = columns.input_ids[start:stop], packed.input_ids_T[t : t + length]
        positions, segments = packed.position_ids_T[t : t + length], packed.segment_ids_T[t : t + length]
        for index in range(length):
            target[index] = source[index]
            positions[index] = index
            segments[index] = index >= b_start

        # Masked positions are stored relative to their instance; in the micro-batch they index the packed tokens.
        for index in range(columns.masked_starts[row], columns.masked_starts[row + 1]):
            packed.masked_positions_M[m] = t + columns.masked_positions[index]
            packed.masked_ids_M[m] = columns.masked_ids[index]
            m += 1

        packed.next_sentence_label_B[b] = columns.next_sentence_labels[row]
        t += length
        packed.cu_seqlens[b + 1] = t
