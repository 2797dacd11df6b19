"""The loops over words give the numbers of the rules' definitions, which are written here in plain Python."""

import random
import re
from collections import Counter

import pytest

from data_prep.clean.quality import FIRST_REPEATED, FIRST_TOP, Measured, character_classes
from data_prep.config.cleaning import CleanConfig

LONGEST = 12
CONFIG = CleanConfig(
    gopher_max_top_ngrams=(0.5,) * (LONGEST - FIRST_TOP), gopher_max_repeated_ngrams=(0.5,) * (LONGEST - FIRST_REPEATED)
)
WORDS = (*"abcdefghaab1", "the", "--", "\u00e9t\u00e9", "\u4e00", "\uac00\ub098", "\U0001f600", "\u0661")
SENTENCE = re.compile(r"[.!?]+[\"')\]\u2019\u201d]*(?=\s|$)|[\u3002\uff01\uff1f\uff0e\u0964\u06d4\u061f]+")
"""A sentence's end: marks before white space, or a mark that ends nothing else."""
SPACES = (" ", " ", " ", "  ", "\t", "\u3000", "\xa0", "\x1c", "\u2009")


def counted(text):
    """Words, with a letter, with a letter or digit, characters of these, the longest word, and ends of sentences."""
    words = text.split()
    alphanumeric = [word for word in words if any(map(str.isalnum, word))]
    lettered = sum(any(map(str.isalpha, word)) for word in words)
    longest = max(map(len, words), default=0)
    return len(words), lettered, len(alphanumeric), sum(map(len, alphanumeric)), longest, len(SENTENCE.findall(text))


def top_characters(words, length):
    """Characters in the most frequent run of words."""
    counts = Counter(zip(*(words[start:] for start in range(length)), strict=False))
    run, count = counts.most_common(1)[0] if counts else ((), 0)
    return count * len(" ".join(run)) if count > 1 else 0


def repeated_characters(words, length):
    """Characters in runs of words that occurred before, none counted twice."""
    runs = list(zip(*(words[start:] for start in range(length)), strict=False))
    seen, repeated, first = set(), 0, 0
    while first < len(runs):
        if runs[first] in seen:
            repeated += sum(map(len, runs[first]))
            first += length
        else:
            seen.add(runs[first])
            first += 1
    return repeated


def texts():
    """Texts of few words, of copied parts, of one word again and again, and of more words than places of a table."""
    chance = random.Random(4)
    for size in (*range(40), 300, 3000):
        for kinds in (1, 2, 3, len(WORDS)):
            yield "".join(chance.choice(WORDS[:kinds]) + chance.choice(SPACES) for _ in range(size))
    for _ in range(30):
        parts = [" ".join(f"w{chance.randrange(300)}" for _ in range(chance.randint(1, 30))) for _ in range(8)]
        yield " ".join(chance.choice(parts) for _ in range(30))
    for size in range(30):
        yield "".join(chance.choice(".!?\"')]\u201d\u3002\uff01a \n") for _ in range(4 * size))
    yield "ab abc a abcd bcd ab abc b ab a"  # words that begin as others do


@pytest.mark.parametrize("text", texts(), ids=lambda text: f"{len(text)}")
def test_words_and_runs_are_measured_as_defined(text):
    document = Measured([text], CONFIG)
    assert document.words == counted(text)
    words = text.split()
    tops, repeats = document.runs
    assert tops[FIRST_TOP:] == [top_characters(words, length) for length in range(FIRST_TOP, LONGEST)]
    assert repeats[FIRST_REPEATED:] == [repeated_characters(words, length) for length in range(FIRST_REPEATED, LONGEST)]


def test_kinds_of_all_characters_are_those_of_python():
    kinds = character_classes()
    for code in range(0x110000):
        character = chr(code)
        asked = (character.isspace(), character.isalpha(), character.isalnum(), character.isdecimal())
        assert int(kinds[min(code, len(kinds) - 1)]) & 15 == sum(bit << place for place, bit in enumerate(asked)), hex(
            code
        )
