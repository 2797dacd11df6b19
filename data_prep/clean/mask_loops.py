"""Loops that find the places in a text at which the patterns of masks may match, in a fraction of their time.

A place that is found may be none after all. None may be missed that a pattern matches on the rest of its line.
"""

from data_prep.clean.minhash_loops import code_at
from data_prep.clean.word_loops import DECIMAL
from megabert.foundation.compiled import compiled, inlined

_COLON, _DOT, _PLUS = ord(":"), ord("."), ord("+")
_SPACE = ord(" ")
_SEPARATORS = (_SPACE, ord("-"), ord("."))
_BLOCK = 32
"""Bytes that are compared at once."""


@compiled
def find_ip_address(text, start):
    """Return the first byte from ``start`` on where an IP address may end; -1 if there is none.

    Four numbers have full stops between them. IPv6 has two colons in a row, or eight hexadecimal numbers.
    """
    digits = dots = hexadecimal = colons = 0
    index = _skip_words(text, start)
    while index < len(text):
        byte = text[index]
        is_digit = 0x30 <= byte <= 0x39
        if is_digit:
            digits += 1
        else:
            dots = dots + 1 if byte == _DOT and digits else 0
            digits = 0
        if is_digit or 0x61 <= byte | 0x20 <= 0x66:
            hexadecimal += 1
        elif byte == _COLON and index > start and text[index - 1] == _COLON:
            return index
        else:
            colons = colons + 1 if byte == _COLON and hexadecimal else 0
            hexadecimal = 0
        if (dots == 3 and digits) or (colons == 7 and hexadecimal):
            return index
        index = _skip_words(text, index + 1) if byte == _SPACE else index + 1
    return -1


@compiled
def find_phone_number(text, start, kinds):
    """Return a byte from ``start`` on within the first text that may be a phone number; -1 if there is none.

    It has a plus before a digit, or three digits, a separator and four digits.
    """
    digits = previous = 0
    is_after_three = False
    index = _skip_words(text, start)
    while index < len(text):
        code, size = code_at(text, index)
        if kinds[min(code, len(kinds) - 1)] & DECIMAL:
            digits += 1
            if previous == _PLUS or (is_after_three and digits == 4):
                return index
        else:
            is_after_three = digits == 3 and code in _SEPARATORS
            digits = 0
        previous, index = code, index + size
        if code == _SPACE:
            index = _skip_words(text, index)
    return -1


@inlined
def _skip_words(text, index):
    """Return the byte before the next block with a digit, a colon or a byte that is no ASCII; else the first byte."""
    first = index
    while index + _BLOCK <= len(text):
        has_any = False
        for place in range(index, index + _BLOCK):
            has_any |= (text[place] >= 0x30) & (text[place] <= 0x3A) | (text[place] >= 0x80)
        if has_any:
            break
        index += _BLOCK
    return index - (index > first)
