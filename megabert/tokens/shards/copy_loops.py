"""The loops that find instances in a mapped shard, copy them out of it, and lay them end to end in a micro-batch.

pyarrow takes longer to open a record batch than a rank takes to copy its one or two rows out of it. So a loop finds the
arrays of a batch itself: it reads the flatbuffer in front of the batch (Arrow's Message.fbs) and follows no number that
leads outside. A batch that is not laid out as a build writes it is refused (`shard_file`).
"""

import mmap
from typing import Any, NamedTuple

import numpy as np

from megabert.foundation.compiled import compiled, inlined
from megabert.tokens.shards.columns import LIST_VALUES, NODES, STARTS

# Fields of the tables Message and RecordBatch, by number, and the type of header that is a record batch.
_HEADER_TYPE, _HEADER = 1, 2
_LENGTH, _NODES, _BUFFERS, _COMPRESSION = 0, 1, 2, 3
_RECORD_BATCH = 3
_NODE_COUNT = len(NODES)
_BUFFER_COUNT = 2 * _NODE_COUNT
_HOLDS = tuple(node.holds for node in NODES)
_WIDTHS = tuple(node.width for node in NODES)
_CONTINUATION = -1
_PAGE = mmap.PAGESIZE
_NEAR = 32 * 1024
"""Gaps of up to so many bytes are read along with their neighbours: one more request costs as much as seven pages."""
BLOCK = np.dtype([("offset", "<i8"), ("metadata", "<i4"), ("padding", "<i4"), ("body", "<i8")])
"""Where a record batch is in the file, as Arrow's footer says it: where its message starts, and the lengths of message
and buffers."""


class MappedShard(NamedTuple):
    """A file as arrays of each of the types in it, and where its record batches and instances are."""

    octets: Any
    halves: Any
    """Uint16."""
    words: Any
    """Int32."""
    longs: Any
    """Int64."""
    tokens: Any
    """Uint16 or uint32, as tokens are stored."""
    blocks: Any
    """``BLOCK``, one for each record batch."""
    starts: Any
    """Int64, the rows at which record batches start, and the end."""
    token_bytes: int
    """Bytes of all tokens of the shard, for the mean of an instance."""
    slack: int
    """Bytes by which the tokens of an instance may be elsewhere than at the mean of those before it."""


@compiled
def locate(shard, rows, numbers, inside):
    """Find in which record batches rows of a shard are, and which bytes these probably take.

    A batch holds its message and the offsets of the tokens, then tokens, then everything else, a quarter of it. A rank
    that takes a single row needs a page or two of the tokens. A page that was not asked for is still read when it is
    needed.

    Args:
        shard: ``MappedShard``.
        rows: Int64, ascending rows of the shard; runs of one batch are looked up once.
        numbers: Int64, written: the record batch of each row...
        inside: ...and its row there.

    Returns:
        Int64 of shape (parts, 2): where parts of the file begin, at the beginning of a page, and end. Neighbours are in
        one part.
    """
    starts = shard.starts
    parts, count, number = np.empty((3 * len(rows), 2), np.int64), 0, -1
    tokens = rest = stop = np.int64(0)
    for index, row in enumerate(rows):
        # A new record batch: ask for the end of the last one, and for the front of this one up to its tokens.
        if number < 0 or not starts[number] <= row < starts[number + 1]:
            count = _ask(parts, count, rest, stop)
            number = np.searchsorted(starts, row, side="right") - 1
            first, tokens, rest, stop = _expected(shard, number)
            count = _ask(parts, count, first, tokens)
        numbers[index], inside[index] = number, row - starts[number]
        # The tokens of the row itself, give or take the slack.
        if tokens < stop:
            begin = tokens + inside[index] * shard.token_bytes // starts[-1]
            end = tokens + (inside[index] + 1) * shard.token_bytes // starts[-1]
            count = _ask(parts, count, max(tokens, begin - shard.slack), min(stop, end + shard.slack))
    return parts[: _ask(parts, count, rest, stop)]


@inlined
def _expected(shard, number):
    """Return the first byte of a batch, the likely first bytes of its tokens and of the rest, and its end.

    If tokens fill too little of the batch to be asked for apart, they are said to begin at the end: the whole batch is
    then in front of them.
    """
    block, size = shard.blocks[number], shard.starts[number + 1] - shard.starts[number]
    stop = block.offset + block.metadata + block.body
    tokens = block.offset + block.metadata + 4 * (size + 1)
    rest = tokens + size * shard.token_bytes // shard.starts[-1] - 2 * shard.slack
    if rest >= stop:
        return block.offset, stop, stop, stop
    return block.offset, tokens, rest, stop


@inlined
def _ask(parts, count, begin, stop):
    """Append a part, or lengthen the last one; return how many there are."""
    if begin >= stop:
        return count
    if count and parts[count - 1, 0] <= begin <= parts[count - 1, 1] + _NEAR:
        parts[count - 1, 1] = max(stop, parts[count - 1, 1])
        return count
    parts[count, 0], parts[count, 1] = begin // _PAGE * _PAGE, stop
    return count + 1


@compiled
def copy_mapped_rows(shard, numbers, rows, filled, columns):
    """Append instances of a mapped shard to ``columns``.

    Args:
        shard: ``MappedShard``.
        numbers: Int64, the record batch of each instance to copy; equal ones next to each other.
        rows: Int64, its row there.
        filled: Number of instances that ``columns`` holds already.
        columns: ``FlatInstances``, with room for lists of the greatest length, written from there on.

    Returns:
        The number of instances in ``columns`` now. If it is too small, the record batch of the next instance is
        damaged, or not laid out as a build does it.
    """
    places, lists = np.empty((_NODE_COUNT, 2), np.int64), np.empty((3, len(rows)), np.int64)
    most_tokens = len(columns.input_ids) // len(columns.rows)
    most_masked = len(columns.masked_ids) // len(columns.rows)
    end = filled
    for index, row in enumerate(rows):
        # A new record batch: its arrays, as views of the file; nodes are in the order of the fields.
        number = numbers[index]
        if index == 0 or number != numbers[index - 1]:
            if _find_arrays(shard, number, places) != shard.starts[number + 1] - shard.starts[number]:
                break
            token_starts, b_starts = _part(shard.words, places[0]), _part(shard.halves, places[2])
            masked_starts, id_starts = _part(shard.words, places[3]), _part(shard.words, places[5])
            labels = _part(shard.octets, places[7])
        start, first, original = token_starts[row], masked_starts[row], id_starts[row]
        length, masked = token_starts[row + 1] - start, masked_starts[row + 1] - first
        # Offsets are of a file that anybody may have written: nothing is followed that leads outside.
        if length > most_tokens or masked > most_masked or id_starts[row + 1] - original != masked:
            break
        if min(start, first, original, length, masked) < 0 or start + length > places[1, 1]:
            break
        if first + masked > places[4, 1] or original + masked > places[6, 1]:
            break
        lists[0, index] = places[1, 0] // shard.tokens.itemsize + start
        lists[1, index] = places[4, 0] // shard.halves.itemsize + first
        lists[2, index] = places[6, 0] // shard.tokens.itemsize + original
        columns.segment_b_starts[end] = b_starts[row]
        columns.next_sentence_labels[end] = labels[row]
        columns.token_starts[end + 1] = columns.token_starts[end] + length
        columns.masked_starts[end + 1] = columns.masked_starts[end] + masked
        end += 1
    # Lists in loops of their own: of short ones a processor waits for the memory of many rows at once.
    _copy_lists(shard.tokens, lists[0], filled, end, columns.input_ids, columns.token_starts)
    _copy_lists(shard.halves, lists[1], filled, end, columns.masked_positions, columns.masked_starts)
    _copy_lists(shard.tokens, lists[2], filled, end, columns.masked_ids, columns.masked_starts)
    return end


@inlined
def _part(values, place):
    """Return the part of a file's array that starts at a byte and has so many values."""
    start = place[0] // values.itemsize
    return values[start : start + place[1]]


@inlined
def _find_arrays(shard, number, places):
    """Find the arrays of a record batch: where each starts in the file, and how many values it has.

    Args:
        shard: ``MappedShard``.
        number: Index of the batch.
        places: Of shape (nodes, 2), written: first byte, number of values.

    Returns:
        The rows of the batch; -1 if it is compressed, has nulls, or is not laid out in this way.
    """
    words, longs, block = shard.words, shard.longs, shard.blocks[number]
    begin = block.offset
    # The message begins in the file, and the body after it. The first check comes before any sum: the compiler assumes
    # that sums do not overflow, and drops checks that could only fail if one did.
    if not 0 <= begin <= len(shard.octets) or begin % 8:
        return -1
    body = begin + block.metadata
    room = min(block.body, len(shard.octets) - body)
    if min(room, block.metadata - 16) < 0 or body % 8 or words[begin // 4] != _CONTINUATION:
        return -1
    # The message: a table whose header is the table of a record batch.
    message = _follow(words, begin + 8, begin, body)
    kind = _field(shard, message, _HEADER_TYPE, begin, body)
    header = _follow(words, _field(shard, message, _HEADER, begin, body), begin, body)
    length = _field(shard, header, _LENGTH, begin, body)
    nodes = _vector(words, _field(shard, header, _NODES, begin, body), _NODE_COUNT, begin, body)
    buffers = _vector(words, _field(shard, header, _BUFFERS, begin, body), _BUFFER_COUNT, begin, body)
    is_compressed = _field(shard, header, _COMPRESSION, begin, body) >= 0
    if kind < 0 or shard.octets[kind] != _RECORD_BATCH or length < 0 or length % 8 or nodes < 0 or buffers < 0:
        return -1
    count = longs[length // 8]
    # A node is (values, nulls), a buffer (offset from the body, bytes); validity comes first and is skipped.
    for node in range(_NODE_COUNT):
        values, nulls = longs[nodes // 8 + 2 * node], longs[nodes // 8 + 2 * node + 1]
        offset, size = longs[buffers // 8 + 4 * node + 2], longs[buffers // 8 + 4 * node + 3]
        # Each column has a value per row. The node of a list counts its rows, and there is one more start than that.
        is_wrong = nulls != 0 or (_HOLDS[node] != LIST_VALUES and values != count)
        values += _HOLDS[node] == STARTS
        width = _WIDTHS[node] if _WIDTHS[node] else shard.tokens.itemsize
        if is_wrong or not 0 <= values <= size // width:
            return -1
        if offset % 8 or not 0 <= offset <= room or size > room - offset:
            return -1
        places[node, 0], places[node, 1] = body + offset, values
    return -1 if is_compressed else count


@inlined
def _follow(words, position, begin, body):
    """Return where the offset at a position leads; -1 if that is not in the message."""
    if not begin <= position <= body - 4 or position % 4:
        return -1
    target = position + words[position // 4]
    return target if begin <= target <= body - 4 and target % 4 == 0 else -1


@inlined
def _field(shard, table, number, begin, body):
    """Return where a field of a table is; -1 if the table lacks it."""
    if table < 0:
        return -1
    vtable, slot = table - shard.words[table // 4], 4 + 2 * number
    if not begin <= vtable <= body - slot - 2 or vtable % 2 or slot + 2 > shard.halves[vtable // 2]:
        return -1
    offset = shard.halves[(vtable + slot) // 2]
    return table + offset if offset and table + offset <= body - 8 else -1


@inlined
def _vector(words, position, count, begin, body):
    """Return where the structs (of two 64-bit numbers) of a vector are; -1 if it has another number of them."""
    vector = _follow(words, position, begin, body)
    if vector < 0 or words[vector // 4] != count or (vector + 4) % 8 or vector + 4 + 16 * count > body:
        return -1
    return vector + 4


@inlined
def _copy_lists(values, places, filled, end, copied, copied_starts):
    """Copy lists, each from its place in a file, to where the instances ``filled`` to ``end - 1`` have theirs."""
    for r in range(filled, end):
        place, first, stop = places[r - filled], copied_starts[r], copied_starts[r + 1]
        source, target = values[place : place + stop - first], copied[first:stop]
        for index in range(stop - first):
            target[index] = source[index]
