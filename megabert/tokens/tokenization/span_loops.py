"""The loops that all kinds of tokenizers share: spans of text, and the tables of spans and of words seen before.

Text is cut at spaces (U+0020) into *spans*, whose ids do not depend on each other. A *plain* span is encoded by the
loops of the tokenizer's kind (`wordpiece_loops`, `byte_bpe_loops`): one of printable ASCII, for WordPiece also one with
letters of scripts that its normaliser leaves as they are. Any other span is *looked up*: only Hugging Face's
`tokenizers` knows enough of Unicode, and it encodes each of them once. `find_spans` numbers such spans by a hash table,
and the ids that were stored for the number are copied.

WordPiece knows no spaces, so its spans lie between them, and between characters that are words of their own:
ideographs and most punctuation (`characters`). In byte-level BPE a word keeps the space before
it: there a span begins with the last space before a character that is no white space.

Words inside of plain spans have a table as well, of *recent* words with their ids. A word of up to 16
bytes is two 64-bit numbers, the first byte lowest, which are compared and hashed without a loop over letters. Its entry
holds these numbers and up to four ids, two in each of two more. Another word with the same slot takes its place.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from megabert.foundation.compiled import compiled, inlined
from megabert.foundation.randomness.keyed import GOLDEN
from megabert.tokens.tokenization.character_kinds import LETTER, SINGLE

SPACE = 0x20
REMEMBERED_BYTES, REMEMBERED_IDS = 16, 4  # longer words, and words of more pieces, are cut again each time
_1, _2, _3, _4, _5, _6, _7 = (np.uint64(value) for value in range(1, 8))
_8, _16, _24, _32, _40, _48, _56 = (np.uint64(8 * value) for value in range(1, 8))
_LOW, _NO_IDS = np.uint64(0xFFFFFFFF), ~np.uint64(0)
# Fowler, Noll and Vo's hash FNV-1a, 64 bits.
_FNV_OFFSET, _FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)


class SpanOptions(NamedTuple):
    """How text is cut into spans."""

    has_words: bool
    """Whether plain spans are encoded by loops, and not looked up."""
    keeps_spaces: bool
    """Whether a span begins with the space before it."""
    kinds: NDArray[np.uint8]
    """The kind of each character up to U+FFFF; not used if spaces are kept."""


@compiled
def count_looked_up(text, offsets, options):
    """Count the spans that are looked up: all that are not plain, or simply all without ``has_words``."""
    has_words, keeps_spaces, kinds = options
    count = 0
    for index in range(len(offsets) - 1):
        start, end = offsets[index], offsets[index + 1]
        if has_words and is_plain(text, start, end):
            continue
        while start < end:
            stop, is_looked_up = next_stretch(text, start, end, has_words, keeps_spaces, kinds)
            count += is_looked_up
            start = stop
    return count


@inlined
def next_stretch(text, start, end, has_words, keeps_spaces, kinds):
    """Return where the next stretch of a text ends, and whether it is a span that is looked up.

    For WordPiece any other stretch is all up to the next such span, spaces and characters that are words included.
    """
    if keeps_spaces:
        stop = span_end(text, start, end)
        return stop, not (has_words and is_plain(text, start, stop))
    position = span = start  # where the span at hand begins
    is_looked_up = False
    while position < end:
        byte = text[position]
        kind = kind_at(text, position, kinds)
        if byte == SPACE or kind == SINGLE:
            if is_looked_up:
                break
            position += 1 if byte == SPACE else 3
            span = position
        else:
            if not (has_words and (0x20 < byte < 0x7F or kind == LETTER)):
                if span > start:
                    return span, False
                is_looked_up = True
            position += 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
    return position, is_looked_up


@inlined
def kind_at(text, position, kinds):
    """Return the kind of the character that begins here, which is `OTHER` for ASCII and above U+FFFF."""
    byte = text[position]
    if byte < 0x80 or byte >= 0xF0:
        return np.uint8(0)
    return kinds[character_at(text, position)]


@inlined
def character_at(text, position):
    """Return the number of the character of two or three bytes that begins here."""
    first, second = np.int64(text[position]), np.int64(text[position + 1] & 0x3F)
    if first < 0xE0:
        return (first & 0x1F) << 6 | second
    return (first & 0x0F) << 12 | second << 6 | np.int64(text[position + 2] & 0x3F)


@inlined
def is_plain(text, start, end):
    """Return whether all bytes are printable ASCII, 0x20 to 0x7E."""
    other = np.uint8(0)
    # No early exit and nothing wider than a byte, so that the compiler compares many bytes at once.
    for byte in text[start:end]:
        other |= np.uint8(np.uint8(byte - np.uint8(0x20)) > np.uint8(0x5E))
    return other == 0


@inlined
def span_end(text, start, end):
    """Return where the span of byte-level BPE that begins at ``start`` ends, at ``end`` at the latest."""
    start += 1
    while start < end and not (text[start] == SPACE and _is_before_word(text, start + 1, end)):
        start += 1
    return start


@inlined
def _is_before_word(text, position, end):
    """Return whether a character begins here that is certainly no white space.

    White space in UTF-8, besides ASCII: C2 85, C2 A0, E1 9A 80, E2 80 (80 to 8A, A8, A9, AF), E2 81 9F, E3 80 80. What
    shares two bytes with it counts as such: then the span is longer than it has to be, and no other harm is done.
    """
    if position >= end:
        return False
    first = text[position]
    if first < 0x80:
        return first > SPACE
    if first == 0xC2:
        return text[position + 1] != 0x85 and text[position + 1] != 0xA0
    if first == 0xE1:
        return text[position + 1] != 0x9A and text[position + 1] != 0xA0  # E1 A0 8E was white space before Unicode 6.3
    if first == 0xE2:
        third = text[position + 2] & 0xF0
        return text[position + 1] > 0x81 or (third != 0x80 and third != 0xA0 and text[position + 2] != 0x9F)
    return first != 0xE3 or text[position + 1] != 0x80


@compiled
def find_spans(text, offsets, options, table, known, fresh, slots):
    """Number the spans that are looked up, by the table of spans seen before, and enter new ones.

    Args:
        text: Bytes of all texts.
        offsets: Where each text starts, and the end of the last.
        options: `SpanOptions`.
        table: Hash table with open addressing: the number of a span, -1 in empty slots. Its size is a power of two.
        known: The spans seen so far: their bytes end to end; where each starts, and the end; how many there are, as
            an array of one element.
        fresh: Written, shape (spans, 2): start and end in ``text`` of each span that is new.
        slots: Written: the number of each span that is looked up, in order.

    Returns:
        How many spans are new.
    """
    has_words, keeps_spaces, kinds = options
    held, ends, count = known
    num_new = num_met = 0
    for index in range(len(offsets) - 1):
        start, end = offsets[index], offsets[index + 1]
        if has_words and is_plain(text, start, end):
            continue
        while start < end:
            stop, is_looked_up = next_stretch(text, start, end, has_words, keeps_spaces, kinds)
            if is_looked_up:
                slot = _slot(table, text[start:stop], held, ends)
                if table[slot] < 0:
                    number = count[0]
                    table[slot] = number
                    ends[number + 1] = ends[number] + stop - start
                    for position in range(start, stop):  # a slice would bring in numba's error messages, a long compile
                        held[ends[number] + position - start] = text[position]
                    count[0] += 1
                    fresh[num_new, 0], fresh[num_new, 1] = start, stop
                    num_new += 1
                slots[num_met] = table[slot]
                num_met += 1
            start = stop
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
def enter_all(table, held, ends, count):
    """Enter the first ``count`` spans, whose bytes and ends are given, into an empty table."""
    for number in range(count):
        table[_slot(table, held[ends[number] : ends[number + 1]], held, ends)] = number


@inlined
def slot_of(recent, first, second):
    """Return where in the table the word of these two numbers is, if it is there."""
    return np.int64((((first ^ (second * _FNV_PRIME)) * GOLDEN) >> _32) & np.uint64(len(recent) - 1))


@inlined
def recall(recent, slot, ids, written):
    """Write the ids of an entry; return ``written`` plus their number.

    All four places are written, and only those counted that hold an id: a branch would cost more, for each word.
    """
    low, high = recent[slot, 2], recent[slot, 3]
    ids[written], ids[written + 1] = np.int32(low & _LOW), np.int32(low >> _32)
    ids[written + 2], ids[written + 3] = np.int32(high & _LOW), np.int32(high >> _32)
    return written + 1 + (low >> _32 != _LOW) + (high & _LOW != _LOW) + (high >> _32 != _LOW)


@inlined
def keep_span(recent, slot, first, second, ids):
    """Enter a word of four ids or fewer; all bits are set where there is none."""
    if len(ids) > REMEMBERED_IDS:
        return
    entry = recent[slot]
    entry[0], entry[1], entry[2], entry[3] = first, second, _NO_IDS, _NO_IDS
    for index in range(len(ids)):
        shift, half = _32 * np.uint64(index & 1), 2 + (index >> 1)
        entry[half] = (entry[half] & ~(_LOW << shift)) | (np.uint64(ids[index]) << shift)


@inlined
def load(text, position):
    """Return eight bytes as a number, the first one lowest, with zeros past the end of the text."""
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
def lowest_bytes(count):
    """Return a mask of the lowest ``count`` bytes: no bit is set for 0 or less, all are for 8 or more."""
    if count <= 0:
        return np.uint64(0)
    return _NO_IDS >> np.uint64(64 - 8 * min(count, 8))
