"""Loops over the bytes of texts: WordPiece of printable ASCII, and a hash table of all other text.

Text is cut at spaces (U+0020) into *spans*. Two kinds of span are encoded differently:

- A span of printable ASCII is encoded here, by `encode`. There the normaliser does nothing but lower-case, and the
  words are runs of letters and digits, and every other character by itself. Each word is cut greedily into the longest
  pieces by walking a trie, unless a table of recent words already has its ids.
- Any other span ("looked up") may need Unicode normalisation, so Hugging Face's `tokenizers` encodes it, once.
  `find_spans` numbers such spans by a hash table, and `encode` copies the ids that were stored for the number.

The loops read eight bytes at a time as one 64-bit number where they can, the first byte lowest. That is what makes them
fast: most English words fit into one or two such numbers, which are compared and hashed without a loop over letters.
"""

import numpy as np

from megabert.compiled import compiled, inlined
from megabert.randomness.splitmix64 import GOLDEN

INITIAL, INSIDE = 0, 1  # the two roots of the trie: pieces that start a word, and pieces inside one (written ##piece)
REMEMBERED_BYTES, REMEMBERED_IDS = 16, 4  # longer words, and words of more pieces, are cut again each time
SPACE = 0x20
_1, _2, _3, _4, _5, _6, _7 = (np.uint64(value) for value in range(1, 8))
_8, _16, _24, _32, _40, _48, _56 = (np.uint64(8 * value) for value in range(1, 8))
_LOW = np.uint64(0xFFFFFFFF)
# Fowler, Noll and Vo's hash FNV-1a, 64 bits.
_FNV_OFFSET, _FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
_NO_IDS = ~np.uint64(0)
# Constants that act on eight bytes at once. Adding _FROM_A to a byte below 128 sets its top bit from "a" on; adding
# _PAST_Z sets it only behind "z". So the two together tell letters apart, and likewise digits.
_ONES, _TOPS, _FOLD, _FROM_A, _PAST_Z, _FROM_0, _PAST_9 = (
    np.uint64(byte * 0x0101010101010101)
    for byte in (1, 0x80, 0x20, 0x80 - ord("a"), 0x7F - ord("z"), 0x80 - ord("0"), 0x7F - ord("9"))
)


@compiled
def enter_pieces(text, offsets, roots, ids, trie):
    """Enter the pieces of a vocabulary into a trie.

    The trie's edges are kept in one hash table with open addressing: the key (node, byte) is in the upper half of an
    entry, the node that the edge leads to in the lower half. 0 means empty; no edge is 0, since none leads to a root.

    Args:
        text: Bytes of all pieces, end to end, without the ``##``.
        offsets: Where each piece starts in ``text``, and the end of the last.
        roots: The root that each piece hangs from, `INITIAL` or `INSIDE`.
        ids: Id of each piece.
        trie: Written: the hash table of edges, zeros before; and for each node the id of the piece that ends there, -1
            if none does.
    """
    edges, piece_of_node = trie
    nodes = 2  # the two roots
    for piece in range(len(ids)):
        node = np.int64(roots[piece])
        for position in range(offsets[piece], offsets[piece + 1]):
            slot = _edge(edges, node, text[position])
            if not edges[slot]:
                edges[slot] = (_key(node, text[position]) << _32) | np.uint64(nodes)
                nodes += 1
            node = np.int64(edges[slot] & _LOW)
        piece_of_node[node] = ids[piece]


@inlined
def _key(node, byte):
    return (np.uint64(node) << _8) | np.uint64(byte)


@inlined
def _edge(edges, node, byte):
    """Return the slot of an edge in the table, or the empty slot where it would be entered."""
    key, last = _key(node, byte), len(edges) - 1
    slot = np.int64((key * GOLDEN) >> _32) & last
    while edges[slot] and edges[slot] >> _32 != key:
        slot = (slot + 1) & last
    return slot


@compiled
def count_looked_up(text, offsets, has_words):
    """Count the spans that are looked up: those that are not printable ASCII, or all of them without ``has_words``."""
    count = 0
    for index in range(len(offsets) - 1):
        if has_words and _is_plain(text, offsets[index], offsets[index + 1]):
            continue
        start = offsets[index]
        while start < offsets[index + 1]:
            end = _span_end(text, start, offsets[index + 1])
            count += end > start and not (has_words and _is_plain(text, start, end))
            start = end + 1
    return count


@inlined
def _is_plain(text, start, end):
    """Return whether all bytes are printable ASCII, 0x20 to 0x7E."""
    other = np.uint8(0)
    # No early exit and nothing wider than a byte, so that the compiler compares many bytes at once.
    for byte in text[start:end]:
        other |= np.uint8(np.uint8(byte - np.uint8(0x20)) > np.uint8(0x5E))
    return other == 0


@inlined
def _span_end(text, start, end):
    """Return where the span that begins at ``start`` ends: at the next space, or at ``end``."""
    while start < end and text[start] != SPACE:
        start += 1
    return start


@compiled
def find_spans(text, offsets, has_words, table, known, fresh, slots):
    """Number the spans that are looked up, by the table of spans seen before, and enter new ones.

    Args:
        text: Bytes of all texts.
        offsets: Where each text starts, and the end of the last.
        has_words: Whether printable ASCII is left to `encode`.
        table: Hash table with open addressing: the number of a span, -1 in empty slots. Its size is a power of two.
        known: The spans seen so far: their bytes end to end; where each starts, and the end; how many there are, as
            an array of one element.
        fresh: Written, shape (spans, 2): start and end in ``text`` of each span that is new.
        slots: Written: the number of each span that is looked up, in order.

    Returns:
        How many spans are new.
    """
    held, ends, count = known
    num_new = num_met = 0
    for index in range(len(offsets) - 1):
        if has_words and _is_plain(text, offsets[index], offsets[index + 1]):
            continue
        start = offsets[index]
        while start < offsets[index + 1]:
            end = _span_end(text, start, offsets[index + 1])
            if end > start and not (has_words and _is_plain(text, start, end)):
                slot = _slot(table, text[start:end], held, ends)
                if table[slot] < 0:
                    number = count[0]
                    table[slot] = number
                    ends[number + 1] = ends[number] + end - start
                    held[ends[number] : ends[number + 1]] = text[start:end]
                    count[0] += 1
                    fresh[num_new, 0], fresh[num_new, 1] = start, end
                    num_new += 1
                slots[num_met] = table[slot]
                num_met += 1
            start = end + 1
    return num_new


@inlined
def _slot(table, span, held, ends):
    """Return the slot of a span in the table, or the empty slot where it would be entered."""
    hashed, last = _FNV_OFFSET, len(table) - 1
    for byte in span:
        hashed = (hashed ^ np.uint64(byte)) * _FNV_PRIME
    slot = np.int64((hashed * GOLDEN) >> _32) & last
    while table[slot] >= 0 and not _is_equal(span, held, ends[table[slot]], ends[table[slot] + 1]):
        slot = (slot + 1) & last
    return slot


@inlined
def _is_equal(span, held, start, end):
    same = 0
    while same < min(len(span), end - start) and held[start + same] == span[same]:
        same += 1
    return same == len(span) == end - start


@compiled
def encode(text, offsets, has_words, pieces, spans, ids, lengths):
    """Write the ids of texts end to end.

    Args:
        text: Bytes of all texts.
        offsets: Where each text starts, and the end.
        has_words: Whether printable ASCII is encoded here.
        pieces: The table of recent words, and the fields of `megabert.tokenization.span_cache.AsciiPieces`.
        spans: Numbers of the spans that are looked up, from `find_spans`; where the ids of each number start; all ids.
        ids: Written. It has room for an id a byte, for the ids of the spans that are looked up, and for one more.
        lengths: Written: how many ids each text has.

    Returns:
        The number of ids.
    """
    slots, starts, known_ids = spans
    remembered, (edges, piece_of_node), is_lower, unknown, longest = pieces
    made = num_met = 0  # ids written, and spans looked up, so far
    for index in range(len(offsets) - 1):
        first, start, end = made, offsets[index], offsets[index + 1]
        is_all_plain = has_words and _is_plain(text, start, end)
        while start < end:
            # Most texts are printable ASCII from end to end, and are encoded in one go, spaces and all.
            stop = end if is_all_plain else _span_end(text, start, end)
            if is_all_plain or (has_words and _is_plain(text, start, stop)):
                made = _encode_plain(
                    text, start, stop, remembered, edges, piece_of_node, is_lower, unknown, longest, ids, made
                )
            elif stop > start:
                for index_of_id in range(starts[slots[num_met]], starts[slots[num_met] + 1]):
                    ids[made] = known_ids[index_of_id]
                    made += 1
                num_met += 1
            start = stop + 1
        lengths[index] = made - first
    return made


@inlined
def _encode_plain(text, start, end, remembered, edges, piece_of_node, is_lower, unknown, longest, ids, made):
    """Write the ids of printable ASCII: runs of letters and digits are words, and so is every other character.

    Arrays are passed one by one and not as a tuple: numba would count each array of a tuple as used and unused again
    for every word, a third of the time.

    Returns:
        ``made``, counted on by the ids that were written.
    """
    last = np.uint64(len(remembered) - 1)
    while start < end:
        if text[start] == SPACE:
            start += 1
            continue
        # How long is the word? The first 16 bytes are read as two numbers, the rest of a long word byte by byte.
        first, second = _load(text, start), np.uint64(0)
        size = _letters(first)
        fold = _FOLD if is_lower and size else np.uint64(0)
        if size == 8:
            second = _load(text, start + 8)
            size += _letters(second)
            while size >= REMEMBERED_BYTES and start + size < end and _letters(np.uint64(text[start + size])):
                size += 1
        stop = start + max(min(size, end - start), 1)  # punctuation has size 0 and is a word of one character
        if stop - start > REMEMBERED_BYTES:
            made = _encode_word(text, start, stop, edges, piece_of_node, is_lower, unknown, longest, ids, made)
            start = stop
            continue
        # Lower-case by setting the bit 0x20, clear the bytes behind the word, and look the two numbers up.
        first = (first | fold) & _lowest_bytes(stop - start)
        second = (second | fold) & _lowest_bytes(stop - start - 8)
        slot = (((first ^ (second * _FNV_PRIME)) * GOLDEN) >> _32) & last
        if remembered[slot, 0] == first and remembered[slot, 1] == second:
            # Two ids in each number. Both are written unconditionally, and counted only if they are there.
            both = remembered[slot, 2]
            ids[made], ids[made + 1] = np.int32(both & _LOW), np.int32(both >> _32)
            made += 1 + (both >> _32 != _LOW)
            if both >> _32 != _LOW and remembered[slot, 3] != _NO_IDS:
                both = remembered[slot, 3]
                ids[made], ids[made + 1] = np.int32(both & _LOW), np.int32(both >> _32)
                made += 1 + (both >> _32 != _LOW)
        else:
            # Not there: cut the word, and let it take the place of the word in this slot.
            begin = made
            made = _encode_word(text, start, stop, edges, piece_of_node, is_lower, unknown, longest, ids, made)
            if made - begin <= REMEMBERED_IDS:
                remembered[slot, 0], remembered[slot, 1] = first, second
                _remember_ids(ids[begin:made], remembered[slot])
        start = stop
    return made


@inlined
def _remember_ids(ids, entry):
    """Store up to four ids of a word in an entry, two in each of two numbers; all bits are set where there is none."""
    entry[2], entry[3] = _NO_IDS, _NO_IDS
    for index in range(len(ids)):
        shift, half = _32 * np.uint64(index & 1), 2 + (index >> 1)
        entry[half] = (entry[half] & ~(_LOW << shift)) | (np.uint64(ids[index]) << shift)


@inlined
def _load(text, position):
    """Return eight bytes as a number, the first one lowest, with zeros behind the end of the text."""
    if position + 8 <= len(text):
        # Written out, and with unsigned indices, the compiler turns this into a single load.
        at = np.uint64(position)
        low = np.uint64(text[at]) | np.uint64(text[at + _1]) << _8 | np.uint64(text[at + _2]) << _16
        low |= np.uint64(text[at + _3]) << _24 | np.uint64(text[at + _4]) << _32 | np.uint64(text[at + _5]) << _40
        return low | np.uint64(text[at + _6]) << _48 | np.uint64(text[at + _7]) << _56
    number = np.uint64(0)
    for index in range(len(text) - position):
        number |= np.uint64(text[position + index]) << np.uint64(8 * index)
    return number


@inlined
def _letters(number):
    """Return how many of the bytes of a number, from the lowest on, are ASCII letters or digits: 0 to 8."""
    folded = number | _FOLD
    is_letter = (folded + _FROM_A) & ~(folded + _PAST_Z)
    is_digit = (number + _FROM_0) & ~(number + _PAST_9)
    # The top bit of each byte that is neither; bytes above 127 have it set themselves.
    others = ~(is_letter | is_digit) & _TOPS | number & _TOPS
    if not others:
        return 8
    # Isolate the lowest such bit. One less has all bits below it set; of these _ONES keeps one a byte, and the product
    # adds the bytes up into the highest one: the number of bytes up to the first other one, itself counted.
    return np.int64((((others & (~others + np.uint64(1))) - np.uint64(1) & _ONES) * _ONES) >> _56) - 1


@inlined
def _lowest_bytes(count):
    """Return a mask of the lowest ``count`` bytes: no bit is set for 0 or less, all are for 8 or more."""
    if count <= 0:
        return np.uint64(0)
    return _NO_IDS >> np.uint64(64 - 8 * min(count, 8))


@inlined
def _encode_word(text, start, end, edges, piece_of_node, is_lower, unknown, longest, ids, made):
    """Cut a word greedily into the longest pieces (Wu et al. 2016, section 4.1), or write [UNK] if that fails."""
    first, root = made, INITIAL
    is_known = end - start <= longest
    while is_known and start < end:
        # Walk down the trie as far as it goes, and remember the last node on the way where a piece ends.
        node, piece, stop, position = np.int64(root), np.int32(-1), start, start
        while position < end:
            slot = _edge(edges, node, _lower(text[position]) if is_lower else text[position])
            if not edges[slot]:
                break
            node = np.int64(edges[slot] & _LOW)
            position += 1
            if piece_of_node[node] >= 0:
                piece, stop = piece_of_node[node], position
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
    """Enter the first ``count`` spans, whose bytes and ends are given, into an empty table."""
    for number in range(count):
        table[_slot(table, held[ends[number] : ends[number + 1]], held, ends)] = number
