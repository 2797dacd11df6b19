"""Loops over the bytes of texts: WordPiece of printable ASCII, and a hash table of all other chunks."""

import numpy as np

from megabert.compiled import compiled, inlined
from megabert.tokenization.backend import MAX_WORD_CHARACTERS

INITIAL, INSIDE = 0, 1  # roots of the trie: pieces that start a word, and those that go on with one
REMEMBERED_BYTES, REMEMBERED_IDS = 16, 4  # longer words, or words of more pieces, are cut anew each time
SPACE = 0x20
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_1, _2, _3, _4, _5, _6, _7 = (np.uint64(value) for value in range(1, 8))
_8, _16, _24, _32, _40, _48, _56 = (np.uint64(8 * value) for value in range(1, 8))
_LOW = np.uint64(0xFFFFFFFF)
_FNV_OFFSET, _FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
_NO_IDS = ~np.uint64(0)
# Eight bytes at a time: what is added to each lifts it above 127 from this character on.
_ONES, _TOPS, _FOLD, _FROM_A, _PAST_Z, _FROM_0, _PAST_9 = (
    np.uint64(byte * 0x0101010101010101)
    for byte in (1, 0x80, 0x20, 0x80 - ord("a"), 0x7F - ord("z"), 0x80 - ord("0"), 0x7F - ord("9"))
)


@compiled
def enter_pieces(text, offsets, roots, ids, trie):
    """Enter the pieces of a vocabulary.

    Args:
        text: Bytes of all pieces, end to end.
        offsets: Where each piece starts, and the end.
        roots: Of each piece in the trie.
        ids: Of each piece.
        trie: Written: a hash table from (node, byte) to node, zeros before; the piece that ends at each node, or -1.
    """
    edges, piece_of_node = trie
    nodes = 2
    for piece in range(len(ids)):
        node = np.int64(roots[piece])
        for place in range(offsets[piece], offsets[piece + 1]):
            slot = _edge(edges, node, text[place])
            if not edges[slot]:
                edges[slot] = (_key(node, text[place]) << _32) | np.uint64(nodes)
                nodes += 1
            node = np.int64(edges[slot] & _LOW)
        piece_of_node[node] = ids[piece]


@inlined
def _key(node, byte):
    return (np.uint64(node) << _8) | np.uint64(byte)


@inlined
def _edge(edges, node, byte):
    """Return where an edge is in its table, or the empty slot where it would be."""
    key, last = _key(node, byte), len(edges) - 1
    slot = np.int64((key * _GOLDEN) >> _32) & last
    while edges[slot] and edges[slot] >> _32 != key:
        slot = (slot + 1) & last
    return slot


@compiled
def count_other(text, offsets, has_words):
    """Return the number of chunks between spaces that are not printable ASCII; of all chunks without ``has_words``."""
    found = 0
    for index in range(len(offsets) - 1):
        if has_words and _is_plain(text, offsets[index], offsets[index + 1]):
            continue
        start = offsets[index]
        while start < offsets[index + 1]:
            end = _chunk_end(text, start, offsets[index + 1])
            found += end > start and not (has_words and _is_plain(text, start, end))
            start = end + 1
    return found


@inlined
def _is_plain(text, start, end):
    other = np.uint8(0)
    for byte in text[start:end]:  # in bytes throughout, so that many are compared at once
        other |= np.uint8(np.uint8(byte - np.uint8(0x20)) > np.uint8(0x5E))
    return other == 0


@inlined
def _chunk_end(text, start, end):
    while start < end and text[start] != SPACE:
        start += 1
    return start


@compiled
def find_chunks(text, offsets, has_words, table, known, fresh, slots):
    """Find the other chunks in the table of those seen before, and enter new ones.

    Args:
        text: Bytes of all texts.
        offsets: Where each text starts, and the end.
        has_words: Whether printable ASCII is left to `encode`.
        table: Number of a chunk by its hash, -1 where there is none; its size is a power of two.
        known: Bytes of the chunks seen; where each starts, and the end; how many there are (one element).
        fresh: Written: start and end in ``text`` of each new chunk.
        slots: Written: the number of each other chunk, in order.

    Returns:
        How many are new.
    """
    held, ends, count = known
    made = met = 0
    for index in range(len(offsets) - 1):
        if has_words and _is_plain(text, offsets[index], offsets[index + 1]):
            continue
        start = offsets[index]
        while start < offsets[index + 1]:
            end = _chunk_end(text, start, offsets[index + 1])
            if end > start and not (has_words and _is_plain(text, start, end)):
                place = _place(table, text[start:end], held, ends)
                if table[place] < 0:
                    number = count[0]
                    table[place] = number
                    ends[number + 1] = ends[number] + end - start
                    held[ends[number] : ends[number + 1]] = text[start:end]
                    count[0] += 1
                    fresh[made, 0], fresh[made, 1] = start, end
                    made += 1
                slots[met] = table[place]
                met += 1
            start = end + 1
    return made


@inlined
def _place(table, chunk, held, ends):
    """Return where a chunk is in the table, or where it would be."""
    hashed, last = _FNV_OFFSET, len(table) - 1
    for byte in chunk:
        hashed = (hashed ^ np.uint64(byte)) * _FNV_PRIME
    place = np.int64((hashed * _GOLDEN) >> _32) & last
    while table[place] >= 0 and not _is_equal(chunk, held, ends[table[place]], ends[table[place] + 1]):
        place = (place + 1) & last
    return place


@inlined
def _is_equal(chunk, held, start, end):
    place = 0
    while place < min(len(chunk), end - start) and held[start + place] == chunk[place]:
        place += 1
    return place == len(chunk) == end - start


@compiled
def encode(text, offsets, has_words, pieces, chunks, ids, lengths):
    """Write the ids of texts end to end.

    Args:
        text: Bytes of all texts.
        offsets: Where each text starts, and the end.
        has_words: Whether printable ASCII is encoded here.
        pieces: Words seen lately, trie, whether upper case counts as lower case, id of [UNK].
        chunks: Numbers of the other chunks in order, from `find_chunks`; where the ids of each start; all their ids.
        ids: Written; has room for an id a byte, those of the other chunks, and one more.
        lengths: Written: of each text in ids.

    Returns:
        The number of ids.
    """
    slots, starts, known_ids = chunks
    remembered, (edges, piece_of_node), is_lower, unknown = pieces
    made = met = 0
    for index in range(len(offsets) - 1):
        first, end = made, offsets[index + 1]
        if has_words and _is_plain(text, offsets[index], end):
            made = _encode_plain(
                text, offsets[index], end, remembered, edges, piece_of_node, is_lower, unknown, ids, made
            )
        else:
            start = offsets[index]
            while start < end:
                stop = _chunk_end(text, start, end)
                if has_words and _is_plain(text, start, stop):
                    made = _encode_plain(
                        text, start, stop, remembered, edges, piece_of_node, is_lower, unknown, ids, made
                    )
                elif stop > start:
                    for place in range(starts[slots[met]], starts[slots[met] + 1]):
                        ids[made] = known_ids[place]
                        made += 1
                    met += 1
                start = stop + 1
        lengths[index] = made - first
    return made


@inlined
def _encode_plain(text, start, end, remembered, edges, piece_of_node, is_lower, unknown, ids, made):
    """Write the ids of printable ASCII: runs of letters and digits are words, so is every other character.

    Arrays come one by one: those of a tuple would be counted as used and as unused again for every word.
    """
    last = np.uint64(len(remembered) - 1)
    while start < end:
        if text[start] == SPACE:
            start += 1
            continue
        first, second = _load(text, start), np.uint64(0)
        size = _letters(first)
        fold = _FOLD if is_lower and size else np.uint64(0)
        if size == 8:
            second = _load(text, start + 8)
            size += _letters(second)
            while size >= REMEMBERED_BYTES and start + size < end and _letters(np.uint64(text[start + size])):
                size += 1
        stop = start + max(min(size, end - start), 1)
        if stop - start > REMEMBERED_BYTES:
            made = _encode_word(text, start, stop, edges, piece_of_node, is_lower, unknown, ids, made)
            start = stop
            continue
        first = (first | fold) & _lowest_bytes(stop - start)
        second = (second | fold) & _lowest_bytes(stop - start - 8)
        place = (((first ^ (second * _FNV_PRIME)) * _GOLDEN) >> _32) & last
        if remembered[place, 0] == first and remembered[place, 1] == second:
            both = remembered[place, 2]
            ids[made], ids[made + 1] = np.int32(both & _LOW), np.int32(both >> _32)
            made += 1 + (both >> _32 != _LOW)
            if both >> _32 != _LOW and remembered[place, 3] != _NO_IDS:
                both = remembered[place, 3]
                ids[made], ids[made + 1] = np.int32(both & _LOW), np.int32(both >> _32)
                made += 1 + (both >> _32 != _LOW)
        else:
            begin = made
            made = _encode_word(text, start, stop, edges, piece_of_node, is_lower, unknown, ids, made)
            if made - begin <= REMEMBERED_IDS:
                remembered[place, 0], remembered[place, 1] = first, second
                _remember_ids(ids[begin:made], remembered[place])
        start = stop
    return made


@inlined
def _remember_ids(ids, entry):
    """Keep the ids of a word, two in each of two numbers, ones where there is none."""
    entry[2], entry[3] = _NO_IDS, _NO_IDS
    for index in range(len(ids)):
        shift, half = _32 * np.uint64(index & 1), 2 + (index >> 1)
        entry[half] = (entry[half] & ~(_LOW << shift)) | (np.uint64(ids[index]) << shift)


@inlined
def _load(text, place):
    """Return eight bytes as a number, the first lowest; zeros behind the end."""
    if place + 8 <= len(text):  # written out and without signs, the compiler makes one load of it
        at = np.uint64(place)
        low = np.uint64(text[at]) | np.uint64(text[at + _1]) << _8 | np.uint64(text[at + _2]) << _16
        low |= np.uint64(text[at + _3]) << _24 | np.uint64(text[at + _4]) << _32 | np.uint64(text[at + _5]) << _40
        return low | np.uint64(text[at + _6]) << _48 | np.uint64(text[at + _7]) << _56
    number = np.uint64(0)
    for index in range(len(text) - place):
        number |= np.uint64(text[place + index]) << np.uint64(8 * index)
    return number


@inlined
def _letters(number):
    """Return how many of the bytes of a number, from the lowest on, are ASCII letters or digits."""
    folded = number | _FOLD
    is_letter = (folded + _FROM_A) & ~(folded + _PAST_Z)
    is_digit = (number + _FROM_0) & ~(number + _PAST_9)
    others = ~(is_letter | is_digit) & _TOPS | number & _TOPS
    if not others:
        return 8
    return np.int64((((others & (~others + np.uint64(1))) - np.uint64(1) & _ONES) * _ONES) >> _56) - 1


@inlined
def _lowest_bytes(count):
    """Return a number whose lowest bytes are full, as many as asked for: none below 1, all from 8 on."""
    if count <= 0:
        return np.uint64(0)
    return _NO_IDS >> np.uint64(64 - 8 * min(count, 8))


@inlined
def _encode_word(text, start, end, edges, piece_of_node, is_lower, unknown, ids, made):
    """Cut a word greedily into the longest pieces (Wu et al. 2016); [UNK] where one is missing."""
    first, root = made, INITIAL
    is_known = end - start <= MAX_WORD_CHARACTERS
    while is_known and start < end:
        node, piece, stop, place = np.int64(root), np.int32(-1), start, start
        while place < end:
            slot = _edge(edges, node, _lower(text[place]) if is_lower else text[place])
            if not edges[slot]:
                break
            node = np.int64(edges[slot] & _LOW)
            place += 1
            if piece_of_node[node] >= 0:
                piece, stop = piece_of_node[node], place
        is_known = piece >= 0
        ids[made] = piece
        made += 1
        start, root = stop, INSIDE
    if not is_known:
        ids[first] = unknown
        made = first + 1
    return made


@inlined
def _lower(byte):
    return np.uint8(byte + 32) if ord("A") <= byte <= ord("Z") else byte


@compiled
def enter_all(table, held, ends, count):
    """Enter chunks, whose bytes and ends are given, into an empty table."""
    for number in range(count):
        place = _place(table, held[ends[number] : ends[number + 1]], held, ends)
        table[place] = number
