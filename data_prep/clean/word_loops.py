"""The words of a text and their repeated runs, measured over its UTF-8, for the rules on quality.

A word is text between white space, as `str.split` cuts it. Words and runs of words are numbered in the order in which
they first occur. Equal numbers mean equal text: hashes only find candidates, which are then compared.
"""

import numpy as np

from data_prep.clean.minhash_loops import code_at
from megabert.foundation.compiled import compiled, inlined
from megabert.foundation.randomness.keyed_loops import scramble

SPACE, LETTER, ALPHANUMERIC, DECIMAL = 1, 2, 4, 8
"""Bits of a character's kind: `str.isspace`, `str.isalpha`, `str.isalnum` and `str.isdecimal`."""
_BASE = np.uint64(0x9E3779B97F4A7C15)
_32 = np.uint64(32)


@compiled
def measure_words(text, kinds):
    """Count the words of a text.

    Args:
        text: Its UTF-8.
        kinds: The kind of each character; the last entry is the kind of all further ones.

    Returns:
        Words, words with a letter, words with a letter or digit, and the characters of these.
    """
    words = lettered = alphanumeric = characters = length = index = 0
    seen = 0  # kinds of the characters of the word
    while index <= len(text):
        kind, size = _kind_at(text, index, kinds)
        index += size
        if not kind & SPACE:
            seen |= kind
            length += 1
        elif length:
            words += 1
            lettered += (seen & LETTER) != 0
            if seen & ALPHANUMERIC:
                alphanumeric += 1
                characters += length
            seen = length = 0
    return words, lettered, alphanumeric, characters


@compiled
def measure_runs(text, kinds, count, tops, repeats):
    """Measure the runs of words that occur more than once in a text.

    A run can only repeat if both runs within it that are a word shorter do. So each length looks at the places that are
    left of the one before.

    Args:
        text: Its UTF-8.
        kinds: As for `measure_words`.
        count: Number of its words.
        tops: By length, from 2 words on: the characters in the most frequent run, with a space between words; of
            equally frequent runs, in the first one. Given as zeros, which stay if no run repeats.
        repeats: By length: the characters, without spaces, in runs that occurred before, none counted twice. Likewise.
    """
    words, lengths = np.empty(count, np.int32), np.empty(count, np.int32)
    counts, firsts = np.empty(count, np.int32), np.empty(count, np.int32)
    keys, slots = np.empty(count, np.uint64), np.empty(_capacity(count), np.int32)
    number = _number_words(text, kinds, words, lengths, counts, firsts, keys, slots)
    runs = words.copy()  # number of the run that begins at each word; -1 if it occurs once
    places = _drop_single(runs, count, counts)
    is_seen = np.empty(count, np.bool_)
    for length in range(2, max(len(tops), len(repeats))):
        if places < 2:
            break
        end, mask, number = count - length + 1, _capacity(places) - 1, 0
        slots[: mask + 1] = -1
        for start in range(end):
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
            counts[slots[slot]] += 1
        places = _drop_single(runs, end, counts)
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
def _number_words(text, kinds, words, lengths, counts, firsts, hashes, slots):
    """Number the words, write their characters, and count how often each number occurs.

    Args:
        text: UTF-8.
        kinds: As for `measure_words`.
        words: Number of each word, written.
        lengths: Characters of each word, written.
        counts: How often each number occurs, written.
        firsts: Byte at which the first word of each number begins, written.
        hashes: Of the word of each number, written.
        slots: Space for a hash table.
    """
    mask, place, number, length, begin, index = len(slots) - 1, 0, 0, 0, 0, 0
    hashed = np.uint64(0)
    slots[:] = -1
    while index <= len(text):
        kind, size = _kind_at(text, index, kinds)
        if not kind & SPACE:
            if not length:
                begin = index
            for byte in range(index, index + size):
                hashed = (hashed ^ np.uint64(text[byte])) * _BASE
            length += 1
        elif length:
            hashed = scramble(hashed)
            slot = np.int64(hashed & np.uint64(mask))
            while slots[slot] >= 0 and not (
                hashes[slots[slot]] == hashed and _is_word_at(text, begin, index, firsts[slots[slot]], kinds)
            ):
                slot = (slot + 1) & mask
            if slots[slot] < 0:
                slots[slot], hashes[number], counts[number], firsts[number] = number, hashed, 0, begin
                number += 1
            words[place], lengths[place] = slots[slot], length
            counts[slots[slot]] += 1
            place, length, hashed = place + 1, 0, np.uint64(0)
        index += size
    return number


@inlined
def _is_word_at(text, begin, end, other, kinds):
    """Return whether a word from byte ``begin`` to ``end`` is also at the byte ``other`` before it."""
    for index in range(end - begin):
        if text[begin + index] != text[other + index]:
            return False
    return (_kind_at(text, other + end - begin, kinds)[0] & SPACE) != 0


@inlined
def _drop_single(runs, end, counts):
    """Write -1 for the runs that occur once; return how many places are left."""
    places = 0
    for start in range(end):
        if runs[start] >= 0:
            if counts[runs[start]] > 1:
                places += 1
            else:
                runs[start] = -1
    return places


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
