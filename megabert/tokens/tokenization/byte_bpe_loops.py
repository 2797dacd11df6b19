"""Loops over the bytes of texts: byte-level BPE of printable ASCII (Sennrich et al. 2016; Radford et al. 2019).

A word is what GPT-2's pattern makes one: an English contraction ('s, 'll), or a run of letters, of digits, or of
everything else, each with one space before it, or a run of spaces. Its bytes are pieces; then the two neighbours whose
merge was learned first become one piece, again and again, unless the table of recent words already has the ids.
"""

import heapq

import numpy as np

from megabert.foundation.compiled import compiled, inlined
from megabert.foundation.randomness.keyed import GOLDEN
from megabert.tokens.tokenization.span_loops import (
    REMEMBERED_BYTES,
    SPACE,
    is_plain,
    keep_span,
    load,
    lowest_bytes,
    recall,
    slot_of,
    span_end,
)

# In longer words the next merge is found by a heap: looking through all takes the square of the length.
SCANNED_BYTES = 64
_SPACES, _LETTERS, _DIGITS, _OTHERS = range(4)  # the classes of GPT-2's pattern
_NO_MERGE = np.int64(1) << 62
_1, _32 = np.uint64(1), np.uint64(32)


@compiled
def enter_merges(lefts, rights, keys, ranks):
    """Enter merges into a hash table with open addressing.

    Args:
        lefts: Ids of the left pieces, in the order in which the merges were learned.
        rights: Ids of the right pieces.
        keys: Written: the pair in each slot, 0 in empty ones. Its size is a power of two.
        ranks: Written: the number of the merge in each slot.
    """
    for rank in range(len(lefts)):
        slot = _merge_slot(keys, lefts[rank], rights[rank])
        keys[slot], ranks[slot] = _pair_key(lefts[rank], rights[rank]), rank


@inlined
def _pair_key(left, right):
    return (np.uint64(left) << _32 | np.uint64(right)) + _1  # 0 means empty


@inlined
def _merge_slot(keys, left, right):
    key, last = _pair_key(left, right), len(keys) - 1
    slot = np.int64((key * GOLDEN) >> _32) & last
    while keys[slot] and keys[slot] != key:
        slot = (slot + 1) & last
    return slot


@inlined
def _rank(keys, ranks, left, right):
    """Return the number of the merge of two pieces, or `_NO_MERGE`."""
    slot = _merge_slot(keys, left, right)
    return ranks[slot] if keys[slot] else _NO_MERGE


@compiled
def encode(text, offsets, options, pieces, spans, ids, lengths):
    """Write the ids of texts end to end; see `megabert.tokens.tokenization.wordpiece_loops.encode`.

    Args:
        text: Bytes of all texts.
        offsets: Where each text starts, and the end.
        options: `megabert.tokens.tokenization.span_loops.SpanOptions`.
        pieces: The table of recent words, and the fields of `megabert.tokens.tokenization.span_cache.BytePieces`.
        spans: Numbers of the spans that are looked up; where the ids of each number start; all ids.
        ids: Written. It has room for an id per byte, for the ids of the spans that are looked up, and for three more.
        lengths: Written: how many ids each text has.

    Returns:
        The number of ids.
    """
    has_words = options.has_words
    slots, starts, known_ids = spans
    recent, byte_ids, keys, ranks, merged_ids = pieces
    scratch = np.empty(SCANNED_BYTES, np.int64)
    written = num_met = 0  # ids written, and spans looked up, so far
    for index in range(len(offsets) - 1):
        first, start, end = written, offsets[index], offsets[index + 1]
        is_all_plain = has_words and is_plain(text, start, end)
        while start < end:
            # Most texts are printable ASCII from end to end, and are encoded in one go.
            stop = end if is_all_plain else span_end(text, start, end)
            if is_all_plain or (has_words and is_plain(text, start, stop)):
                written = _encode_plain(
                    text, start, stop, recent, byte_ids, keys, ranks, merged_ids, scratch, ids, written
                )
            else:
                for index_of_id in range(starts[slots[num_met]], starts[slots[num_met] + 1]):
                    ids[written] = known_ids[index_of_id]
                    written += 1
                num_met += 1
            start = stop
        lengths[index] = written - first
    return written


@inlined
def _encode_plain(text, start, end, recent, byte_ids, keys, ranks, merged_ids, scratch, ids, written):
    """Write the ids of printable ASCII; return ``written`` plus their number."""
    while start < end:
        stop = _word_end(text, start, end)
        if stop - start > REMEMBERED_BYTES:
            written = _merge_word(text, start, stop, byte_ids, keys, ranks, merged_ids, scratch, ids, written)
            start = stop
            continue
        first, second = load(text, start) & lowest_bytes(stop - start), np.uint64(0)
        if stop - start > 8:
            second = load(text, start + 8) & lowest_bytes(stop - start - 8)
        slot = slot_of(recent, first, second)
        if recent[slot, 0] == first and recent[slot, 1] == second:
            written = recall(recent, slot, ids, written)
        else:
            begin = written
            written = _merge_word(text, start, stop, byte_ids, keys, ranks, merged_ids, scratch, ids, written)
            keep_span(recent, slot, first, second, ids[begin:written])
        start = stop
    return written


@inlined
def _class(byte):
    """Return the class of a byte of printable ASCII."""
    if np.uint8((byte | np.uint8(0x20)) - np.uint8(ord("a"))) < 26:
        return _LETTERS
    if np.uint8(byte - np.uint8(ord("0"))) < 10:
        return _DIGITS
    return _SPACES if byte == SPACE else _OTHERS


@inlined
def _word_end(text, start, end):
    r"""Return where the word ends that begins at ``start``, by GPT-2's pattern.

    It is ``'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+``, the first that fits.
    """
    if text[start] == ord("'") and start + 1 < end:
        after = text[start + 1]
        if after == ord("s") or after == ord("t") or after == ord("m") or after == ord("d"):
            return start + 2
        if start + 2 < end:
            last = text[start + 2]
            if (last == ord("e") and (after == ord("r") or after == ord("v"))) or (after == last == ord("l")):
                return start + 3
    # One space may come before a run of a class.
    stop = start
    if text[start] == SPACE and start + 1 < end and text[start + 1] != SPACE:
        stop += 1
    kind = _class(text[stop])
    stop += 1
    while stop < end and _class(text[stop]) == kind:
        stop += 1
    # Of several spaces the last belongs to the word after them.
    return stop - 1 if kind == _SPACES and stop < end else stop


@inlined
def _merge_word(text, start, end, byte_ids, keys, ranks, merged_ids, scratch, ids, written):
    """Write the ids of a word; return ``written`` plus their number."""
    size = end - start
    for index in range(size):
        ids[written + index] = byte_ids[text[start + index]]
    if size > SCANNED_BYTES:
        return written + _merge_by_heap(keys, ranks, merged_ids, ids[written : written + size])
    for index in range(size - 1):
        scratch[index] = _rank(keys, ranks, ids[written + index], ids[written + index + 1])
    while size > 1:
        # The two neighbours whose merge was learned first; of equal ones the leftmost.
        best = 0
        for index in range(1, size - 1):
            if scratch[index] < scratch[best]:
                best = index
        if scratch[best] == _NO_MERGE:
            break
        at = written + best
        ids[at] = merged_ids[scratch[best]]
        size -= 1
        for index in range(best + 1, size):
            ids[written + index], scratch[index - 1] = ids[written + index + 1], scratch[index]
        if best > 0:
            scratch[best - 1] = _rank(keys, ranks, ids[at - 1], ids[at])
        if best < size - 1:
            scratch[best] = _rank(keys, ranks, ids[at], ids[at + 1])
    return written + size


@inlined
def _merge_by_heap(keys, ranks, merged_ids, ids):
    """Merge the pieces of a long word in place; return how many are left.

    The heap holds (rank, place) of neighbours in one number. If one of the two has been merged with its other neighbour
    meanwhile, the entry is stale, and is left out when its turn comes.
    """
    size = len(ids)
    # Pieces are a linked list: a merge keeps the left place and takes the right one, marked by -1, out of the list.
    following, previous = np.arange(1, size + 1), np.arange(-1, size - 1)
    heap = [np.int64(0) for _ in range(0)]  # an empty list of this type
    # All neighbours that merge.
    for index in range(size - 1):
        rank = _rank(keys, ranks, ids[index], ids[index + 1])
        if rank != _NO_MERGE:
            heap.append(rank << 32 | index)
    heapq.heapify(heap)
    while len(heap):
        entry = heapq.heappop(heap)
        merge, place = entry >> 32, entry & 0xFFFFFFFF
        right = following[place]
        if ids[place] < 0 or right >= size or _rank(keys, ranks, ids[place], ids[right]) != merge:
            continue
        # Merge, and enter the new piece with its neighbours on both sides.
        ids[place], ids[right] = merged_ids[merge], -1
        following[place] = following[right]
        if following[place] < size:
            previous[following[place]] = place
            after = _rank(keys, ranks, ids[place], ids[following[place]])
            if after != _NO_MERGE:
                heapq.heappush(heap, after << 32 | place)
        if previous[place] >= 0:
            before = _rank(keys, ranks, ids[previous[place]], ids[place])
            if before != _NO_MERGE:
                heapq.heappush(heap, before << 32 | previous[place])
    # Move the pieces that are left together.
    left = 0
    for index in range(size):
        if ids[index] >= 0:
            ids[left] = ids[index]
            left += 1
    return left
