"""Loops over the bytes of texts: WordPiece of printable ASCII, and a hash table of all other chunks."""

import numpy as np

from megabert.compiled import compiled, inlined
from megabert.tokenization.backend import MAX_WORD_CHARACTERS

INITIAL, INSIDE = 0, 1  # roots of the trie: pieces that start a word, and those that go on with one
SHORT_BYTES = 8  # words up to here are looked up whole, packed into one number: most are one piece
SPACE = 0x20
_FIRST_PLAIN, _LAST_PLAIN = np.uint8(0x20), np.uint8(0x7E)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_8, _32, _LOW = np.uint64(8), np.uint64(32), np.uint64(0xFFFFFFFF)
_FNV_OFFSET, _FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)


@compiled
def enter_pieces(text, offsets, roots, ids, words, trie):
    """Enter the pieces of a vocabulary.

    Args:
        text: Bytes of all pieces, end to end.
        offsets: Where each piece starts, and the end.
        roots: Of each piece in the trie.
        ids: Of each piece.
        words: Written: a hash table of short words, as numbers, zeros before, and their pieces.
        trie: Written: a hash table from (node, byte) to node, zeros before; the piece that ends at each node, or -1.
    """
    edges, piece_of_node = trie
    nodes = 2
    for piece in range(len(ids)):
        node, packed = np.int64(roots[piece]), np.uint64(0)
        start, end = offsets[piece], offsets[piece + 1]
        for place in range(start, end):
            if place - start < SHORT_BYTES:
                packed |= np.uint64(text[place]) << (_8 * np.uint64(place - start))
            slot = _edge(edges, node, text[place])
            if not edges[slot]:
                edges[slot] = (_key(node, text[place]) << _32) | np.uint64(nodes)
                nodes += 1
            node = np.int64(edges[slot] & _LOW)
        piece_of_node[node] = ids[piece]
        if roots[piece] == INITIAL and end - start <= SHORT_BYTES:
            slot = _word(words[0], packed)
            words[0][slot], words[1][slot] = packed, ids[piece]


@inlined
def _word(words, packed):
    """Return where a short word is in its table, or the empty slot where it would be."""
    last = len(words) - 1
    slot = np.int64((packed * _GOLDEN) >> _32) & last
    while words[slot] and words[slot] != packed:
        slot = (slot + 1) & last
    return slot


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
    is_other = False
    for place in range(start, end):
        is_other |= (text[place] < _FIRST_PLAIN) | (text[place] > _LAST_PLAIN)
    return not is_other


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
        pieces: Table of short words, trie, what each byte of a word is taken for (0 if it parts words), id of [UNK].
        chunks: Numbers of the other chunks in order, from `find_chunks`; where the ids of each start; all their ids.
        ids: Written; has room for an id a byte and those of the other chunks.
        lengths: Written: of each text in ids.

    Returns:
        The number of ids.
    """
    slots, starts, known_ids = chunks
    made = met = 0
    for index in range(len(offsets) - 1):
        first, end = made, offsets[index + 1]
        if has_words and _is_plain(text, offsets[index], end):
            made = _encode_plain(text, offsets[index], end, pieces, ids, made)
        else:
            start = offsets[index]
            while start < end:
                stop = _chunk_end(text, start, end)
                if has_words and _is_plain(text, start, stop):
                    made = _encode_plain(text, start, stop, pieces, ids, made)
                elif stop > start:
                    for place in range(starts[slots[met]], starts[slots[met] + 1]):
                        ids[made] = known_ids[place]
                        made += 1
                    met += 1
                start = stop + 1
        lengths[index] = made - first
    return made


@inlined
def _encode_plain(text, start, end, pieces, ids, made):
    """Write the ids of printable ASCII: runs of letters and digits are words, so is every other character."""
    words, trie, folded, unknown = pieces
    while start < end:
        if text[start] == SPACE:
            start += 1
            continue
        packed, stop = np.uint64(folded[text[start]]), start + 1
        if packed:
            shift = _8
            while stop < end and stop - start < SHORT_BYTES and folded[text[stop]]:
                packed |= np.uint64(folded[text[stop]]) << shift
                shift += _8
                stop += 1
            while stop < end and folded[text[stop]]:
                stop += 1
        else:
            packed = np.uint64(text[start])
        piece = np.int32(-1)
        if stop - start <= SHORT_BYTES:
            piece = words[1][_word(words[0], packed)]
        if piece >= 0:
            ids[made] = piece
            made += 1
        else:
            made = _encode_word(text, start, stop, trie, folded, unknown, ids, made)
        start = stop
    return made


@inlined
def _encode_word(text, start, end, trie, folded, unknown, ids, made):
    """Cut a word greedily into the longest pieces (Wu et al. 2016); [UNK] where one is missing."""
    edges, piece_of_node = trie
    first, root = made, INITIAL
    is_known = end - start <= MAX_WORD_CHARACTERS
    while is_known and start < end:
        node, piece, stop, place = np.int64(root), np.int32(-1), start, start
        while place < end:
            slot = _edge(edges, node, max(folded[text[place]], text[place]))
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


@compiled
def enter_all(table, held, ends, count):
    """Enter chunks, whose bytes and ends are given, into an empty table."""
    for number in range(count):
        place = _place(table, held[ends[number] : ends[number + 1]], held, ends)
        table[place] = number
