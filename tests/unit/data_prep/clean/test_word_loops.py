"""The loops over words give the numbers of the rules' definitions, which are written here in plain Python."""

import random
from collections import Counter

import pytest

from data_prep.clean.quality import FIRST_REPEATED, FIRST_TOP, Measured, character_classes
from data_prep.config.cleaning import CleanConfig

LONGEST = 12
CONFIG = CleanConfig(
    gopher_max_top_ngrams=(0.5,) * (LONGEST - FIRST_TOP), gopher_max_repeated_ngrams=(0.5,) * (LONGEST - FIRST_REPEATED)
)
WORDS = (
    *"abcdefgh",
    "a",
    "a",
    "b",
    "the",
    "1",
    "--",
    "\u00e9t\u00e9",
    "\u4e00",
    "\uac00\ub098",
    "\U0001f600",
    "\u0661",
)
SPACES = (" ", " ", " ", "  ", "\t", "\u3000", "\xa0", "\x1c", "\u2009")


def counted(text):
    """Words, words with a letter, with a letter or digit, and the characters of these."""
    words = text.split()
    alphanumeric = [word for word in words if any(map(str.isalnum, word))]
    lettered = sum(any(map(str.isalpha, word)) for word in words)
    return len(words), lettered, len(alphanumeric), sum(map(len, alphanumeric))


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
        assert int(kinds[min(code, len(kinds) - 1)]) == sum(bit << place for place, bit in enumerate(asked)), hex(code)
