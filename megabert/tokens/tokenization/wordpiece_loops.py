"""Loops over the bytes of texts: WordPiece of printable ASCII, and of letters that the normaliser leaves as they are.

In ASCII the normaliser does nothing but lower-case, and the words are runs of letters and digits, and every other
character by itself. Beyond it a character belongs to a word or is one, by its kind. Each word is cut greedily into the
longest pieces by walking a trie, unless the table of recent words already has its ids. All other spans have ids already
(`span_loops`).

The loops read eight bytes at a time as one 64-bit number, the first byte lowest. That makes them fast: most
English words fit into one or two such numbers, which are compared and hashed without a loop over letters.
"""

import numpy as np

from megabert.foundation.compiled import compiled, inlined
from megabert.foundation.randomness.keyed import GOLDEN
from megabert.tokens.tokenization.character_kinds import SINGLE
from megabert.tokens.tokenization.span_loops import (
    REMEMBERED_BYTES,
    SPACE,
    character_at,
    is_plain,
    keep_span,
    kind_at,
    load,
    lowest_bytes,
    next_stretch,
    recall,
    slot_of,
)

INITIAL, INSIDE = 0, 1  # the two roots of the trie: pieces that start a word, and pieces inside one (written ##piece)
_1, _2, _8, _32, _56 = (np.uint64(value) for value in (1, 2, 8, 32, 56))
_LOW = np.uint64(0xFFFFFFFF)
# Constants that act on eight bytes at once. Adding _FROM_A to a byte below 128 sets its top bit from "a" on; adding
# _PAST_Z sets it only after "z". So the two together tell letters apart, and likewise digits.
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
def encode(text, offsets, options, pieces, spans, ids, lengths):
    """Write the ids of texts end to end.

    Args:
        text: Bytes of all texts.
        offsets: Where each text starts, and the end.
        options: `megabert.tokens.tokenization.span_loops.SpanOptions`.
        pieces: The table of recent words, and the fields of `span_cache.WordPieces`.
        spans: Numbers of the spans that are looked up, from `span_loops.find_spans`; where the
            ids of each number start; all ids.
        ids: Written. It has room for an id per byte, for the ids of the spans that are looked up, and for three more.
        lengths: Written: how many ids each text has.

    Returns:
        The number of ids.
    """
    has_words = options.has_words
    recent, (edges, piece_of_node), _, is_lower, unknown, longest = pieces
    written = num_met = 0  # ids written, and spans looked up, so far
    for index in range(len(offsets) - 1):
        first, start, end = written, offsets[index], offsets[index + 1]
        # Most texts are printable ASCII from end to end, and are encoded in one go, spaces and all.
        if has_words and is_plain(text, start, end):
            written = _encode_plain(
                text, start, end, recent, edges, piece_of_node, is_lower, unknown, longest, ids, written
            )
        else:
            written, num_met = _encode_spans(text, start, end, options, pieces, spans, ids, written, num_met)
        lengths[index] = written - first
    return written


@compiled
def _encode_spans(text, start, end, options, pieces, spans, ids, written, num_met):
    """Write the ids of a text span by span; return ``written`` and ``num_met`` plus the numbers of ids and spans.

    It is a function of its own so that the loop over plain texts stays small enough for the compiler to make it fast.
    """
    has_words, keeps_spaces, kinds = options
    slots, starts, known_ids = spans
    recent, (edges, piece_of_node), single_ids, is_lower, unknown, longest = pieces
    while start < end:
        stop, is_looked_up = next_stretch(text, start, end, has_words, keeps_spaces, kinds)
        if is_looked_up:
            for index in range(starts[slots[num_met]], starts[slots[num_met] + 1]):
                ids[written] = known_ids[index]
                written += 1
            num_met += 1
            start = stop
        # This is `_encode_plain` for letters of all scripts. A function for both would be slow in ASCII.
        while start < stop:
            kind = kind_at(text, start, kinds)
            if kind == SINGLE:
                ids[written] = single_ids[character_at(text, start)]
                written += 1
            if kind == SINGLE or text[start] == SPACE:
                start += 3 if kind == SINGLE else 1
                continue
            end_of_word = _word_end(text, start, stop, kinds)
            most = longest  # in bytes
            for position in range(start, end_of_word):
                most += text[position] & 0xC0 == 0x80
            if end_of_word - start > REMEMBERED_BYTES:
                written = _encode_word(
                    text, start, end_of_word, edges, piece_of_node, is_lower, unknown, most, ids, written
                )
                start = end_of_word
                continue
            first = load(text, start) & lowest_bytes(end_of_word - start)
            second = np.uint64(0)
            if end_of_word - start > 8:
                second = load(text, start + 8) & lowest_bytes(end_of_word - start - 8)
            if is_lower:
                first, second = _folded(first), _folded(second)
            slot = slot_of(recent, first, second)
            if recent[slot, 0] == first and recent[slot, 1] == second:
                written = recall(recent, slot, ids, written)
            else:
                begin = written
                written = _encode_word(
                    text, start, end_of_word, edges, piece_of_node, is_lower, unknown, most, ids, written
                )
                keep_span(recent, slot, first, second, ids[begin:written])
            start = end_of_word
    return written, num_met


@inlined
def _encode_plain(text, start, end, recent, edges, piece_of_node, is_lower, unknown, longest, ids, written):
    """Write the ids of printable ASCII: runs of letters and digits are words, and so is every other character.

    Arrays are passed one by one and not as a tuple: numba would count each array of a tuple as used and unused again
    for every word, a third of the time.

    Returns:
        ``written`` plus the number of ids.
    """
    while start < end:
        if text[start] == SPACE:
            start += 1
            continue
        # How long is the word? The first 16 bytes are read as two numbers, the rest of a long word byte by byte.
        first, second = load(text, start), np.uint64(0)
        size = _letters(first)
        fold = _FOLD if is_lower and size else np.uint64(0)
        if size == 8:
            second = load(text, start + 8)
            size += _letters(second)
            while size >= REMEMBERED_BYTES and start + size < end and _letters(np.uint64(text[start + size])):
                size += 1
        stop = start + max(min(size, end - start), 1)  # punctuation has size 0 and is a word of one character
        if stop - start > REMEMBERED_BYTES:
            written = _encode_word(text, start, stop, edges, piece_of_node, is_lower, unknown, longest, ids, written)
            start = stop
            continue
        # Lower-case by setting the bit 0x20, clear the bytes after the word, and look the two numbers up.
        first = (first | fold) & lowest_bytes(stop - start)
        second = (second | fold) & lowest_bytes(stop - start - 8)
        slot = slot_of(recent, first, second)
        if recent[slot, 0] == first and recent[slot, 1] == second:
            written = recall(recent, slot, ids, written)
        else:
            # Not there: cut the word, and let it take the place of the word in this slot.
            begin = written
            written = _encode_word(text, start, stop, edges, piece_of_node, is_lower, unknown, longest, ids, written)
            keep_span(recent, slot, first, second, ids[begin:written])
        start = stop
    return written


@inlined
def _folded(number):
    """Set the bit 0x20 in each of eight bytes that is an ASCII letter, so that upper case counts as lower case."""
    low = number & ~_TOPS
    folded = low | _FOLD
    is_letter = (folded + _FROM_A) & ~(folded + _PAST_Z) & ~number & _TOPS
    return number | is_letter >> _2


@inlined
def _word_end(text, start, end, kinds):
    """Return where the word ends that begins here, of letters and digits in any script."""
    position = start
    while position < end:
        byte = text[position]
        if byte < 0x80:
            if not _letters(np.uint64(byte)):
                break
            position += 1
        else:
            if kind_at(text, position, kinds) == SINGLE:
                break
            position += 2 if byte < 0xE0 else 3
    return max(position, start + 1)


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
def _encode_word(text, start, end, edges, piece_of_node, is_lower, unknown, longest, ids, written):
    """Cut a word greedily into the longest pieces (Wu et al. 2016, section 4.1), or write [UNK] if that fails.

    For example, with the pieces ``un``, ``##aff``, ``##able`` and ``##ab``:

        input = "unaffable"
        from the root of first pieces, u-n, and no edge for a:   "un"
        from the root of inner pieces, a-f-f, and no edge for a: "##aff"
        from the root of inner pieces, a-b-l-e, to the end:      "##able", which is longer than "##ab"
        output = ["un", "##aff", "##able"]

    It never goes back: with a piece ``una`` as well, nothing continues after that, and the word is [UNK].

    Returns:
        ``written`` plus the number of ids.
    """
    first, root = written, INITIAL
    is_known = end - start <= longest
    while is_known and start < end:
        # Walk down the trie as far as it goes, and remember the last node on the way at which a piece ends.
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
        ids[written] = piece
        written += 1
        start, root = stop, INSIDE
    if not is_known:
        ids[first] = unknown
        written = first + 1
    return written


@inlined
def _lower(byte):
    return np.uint8(byte + 32) if ord("A") <= byte <= ord("Z") else byte
