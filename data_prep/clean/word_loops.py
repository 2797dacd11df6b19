"""The words of a text and their repeated runs, measured over its UTF-8, for the rules on quality.

A word is text between white space, as `str.split` cuts it. Words and runs of words are numbered in the order in which
they first occur. Words with the same 64 bits of a hash count as equal.
"""

import numpy as np

from data_prep.clean.minhash_loops import code_at
from megabert.foundation.compiled import compiled, inlined
from megabert.foundation.randomness.keyed_loops import scramble

SPACE, LETTER, ALPHANUMERIC, DECIMAL = 1, 2, 4, 8
"""Bits of a character's kind: `str.isspace`, `str.isalpha`, `str.isalnum` and `str.isdecimal`."""
MARK, CLOSING_MARK, SURE_END = 16, 32, 64
"""Further bits: marks that end a sentence before white space, marks that may follow them, and marks that always end
one."""
_BASE = np.uint64(0x9E3779B97F4A7C15)
_32 = np.uint64(32)


@compiled
def measure_words(text, kinds):
    """Count the words of a text.

    Args:
        text: Its UTF-8.
        kinds: The kind of each character; the last entry is the kind of all further ones.

    Returns:
        Words, words with a letter, words with a letter or digit, the characters of these, the characters of the longest
        word, and the ends of sentences.
    """
    words = lettered = alphanumeric = characters = longest = sentences = length = index = 0
    seen = previous = 0  # kinds of the characters of the word, and of the last one
    may_end = False
    while index <= len(text):
        kind, size = _kind_at(text, index, kinds)
        index += size
        if not kind & SPACE:
            seen |= kind
            length += 1
            may_end = (kind & MARK) != 0 or (may_end and (kind & CLOSING_MARK) != 0)
            sentences += (kind & SURE_END) > (previous & SURE_END)
        elif length:
            words += 1
            lettered += (seen & LETTER) != 0
            if seen & ALPHANUMERIC:
                alphanumeric += 1
                characters += length
            longest = max(longest, length)
            sentences += may_end
            seen = length = 0
            may_end = False
        previous = kind
    return words, lettered, alphanumeric, characters, longest, sentences


@compiled
def measure_runs(text, kinds, count, tops, repeats):
    """Measure the runs of words that occur more than once in a text.

    A run can only repeat if both runs within it that are a word shorter do. So each length looks at the places that are
    left of the one before.

    Args:
        text: Its UTF-8.
        kinds: As for `measure_words`.
        count: Number of its words.
        tops: By length, the characters in the most frequent run, with a space between words; of equally frequent runs,
            in the first one. Given as zeros, which stay if no run repeats.
        repeats: By length, the characters, without spaces, in runs that occurred before, none counted twice. Likewise.
    """
    hashes, lengths = np.empty(count, np.uint64), np.empty(count, np.int32)
    _hash_words(text, kinds, hashes, lengths)
    words, runs = np.empty(count, np.int32), np.empty(count, np.int32)  # runs: -1 for a run that occurs once
    keys, counts, firsts = np.empty(count, np.uint64), np.empty(count, np.int32), np.empty(count, np.int32)
    slots, is_seen, places = np.empty(_capacity(count), np.int32), np.empty(count, np.bool_), count
    for length in range(1, max(len(tops), len(repeats))):
        if places < 2:
            break
        end, mask, number = count - length + 1, _capacity(places) - 1, 0
        slots[: mask + 1] = -1
        for start in range(end):
            key = hashes[start]
            if length > 1:
                if runs[start] < 0 or runs[start + 1] < 0:
                    runs[start] = -1
                    continue
                key = np.uint64(runs[start]) << _32 | np.uint64(words[start + length - 1])
            slot = np.int64(scramble(key) & np.uint64(mask))
            while slots[slot] >= 0 and keys[slots[slot]] != key:
                slot = (slot + 1) & mask
            if slots[slot] < 0:
                slots[slot], keys[number], counts[number], firsts[number] = number, key, 0, start
                number += 1
            runs[start] = slots[slot]
            counts[runs[start]] += 1
        if length == 1:
            words[:] = runs
        places = 0
        for start in range(end):
            if runs[start] >= 0 and counts[runs[start]] == 1:
                runs[start] = -1
            places += runs[start] >= 0
        if length < len(tops) and places:
            top = np.argmax(counts[:number])
            tops[length] = counts[top] * (lengths[firsts[top] : firsts[top] + length].sum() + length - 1)
        if length < len(repeats) and places:
            is_seen[:number] = False
            repeats[length] = _repeated_characters(runs, end, length, lengths, is_seen)


@inlined
def _kind_at(text, index, kinds):
    """Return the kind of the character at a byte, and its bytes; at the end of the text there is white space."""
    if index == len(text):
        return SPACE, 1
    code, size = code_at(text, index)
    return np.int64(kinds[min(code, len(kinds) - 1)]), size


@inlined
def _capacity(entries):
    """Return the slots of a hash table: a power of 2, at most half full."""
    capacity = 2
    while capacity < 2 * entries:
        capacity *= 2
    return capacity


@inlined
def _hash_words(text, kinds, hashes, lengths):
    """Write the hash of each word, and its characters."""
    place = length = index = 0
    hashed = np.uint64(0)
    while index <= len(text):
        kind, size = _kind_at(text, index, kinds)
        if not kind & SPACE:
            for byte in range(index, index + size):
                hashed = (hashed ^ np.uint64(text[byte])) * _BASE
                hashed ^= hashed >> _32
            length += 1
        elif length:
            hashes[place], lengths[place] = hashed, length
            place, length, hashed = place + 1, 0, np.uint64(0)
        index += size


@inlined
def _repeated_characters(runs, end, length, lengths, is_seen):
    """Return the characters of runs that occurred before; the search goes on after the end of such a run."""
    repeated = start = 0
    while start < end:
        run = runs[start]
        if run >= 0 and is_seen[run]:
            repeated += lengths[start : start + length].sum()
            start += length
        else:
            if run >= 0:
                is_seen[run] = True
            start += 1
    return repeated
