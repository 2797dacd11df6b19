"""The loops that gather instances: from record batches into columns, and from columns into a packed micro-batch."""

# T packed tokens, M masked positions, B sequences

from megabert.compiled import compiled


@compiled
def copy_rows(batch, rows, filled, columns):
    """Append instances of a record batch to columns.

    Args:
        batch: ``FlatBatch``.
        rows: Int64, the instances to copy, in order.
        filled: Instances that are in the columns already.
        columns: ``Columns``, with room for lists of the greatest length, written from there on.

    Returns:
        ``filled``, with these instances; it ends before one whose offsets make no sense, that is longer than there is
        room for, or whose masked positions and ids differ in number.
    """
    ids_T, offsets, b_start_R, positions_M, ends_M, originals_M, ends_originals, label_R = batch
    most_tokens = len(columns.input_ids) // len(columns.rows)
    most_masked = len(columns.masked_ids) // len(columns.rows)
    r = filled
    for row in rows:
        start, first, original = offsets[row], ends_M[row], ends_originals[row]
        length, masked = offsets[row + 1] - start, ends_M[row + 1] - first
        if length > most_tokens or masked > most_masked or ends_originals[row + 1] - original != masked:
            break
        if min(start, first, original, length, masked) < 0 or start + length > len(ids_T):
            break
        if first + masked > len(positions_M) or original + masked > len(originals_M):
            break
        t, m = columns.token_starts[r], columns.masked_starts[r]
        source, target = ids_T[start : start + length], columns.input_ids[t : t + length]
        for index in range(length):
            target[index] = source[index]
        for index in range(masked):
            columns.masked_positions[m + index] = positions_M[first + index]
            columns.masked_ids[m + index] = originals_M[original + index]
        columns.segment_b_starts[r] = b_start_R[row]
        columns.next_sentence_labels[r] = label_R[row]
        r += 1
        columns.token_starts[r], columns.masked_starts[r] = t + length, m + masked
    return r


@compiled
def gather_rows(columns, rows, packed):
    """Copy instances end to end, with what follows from where each one starts.

    Args:
        columns: ``Columns``, the decoded instances.
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
