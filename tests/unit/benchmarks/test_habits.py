"""Each habit of English is found by its own kind alone, and the plain sentence in its place by none."""

from collections import Counter
from pathlib import Path

import pytest

READING = Path(__file__).resolve().parents[3] / "benchmarks" / "reading"
SENTENCES = {
    "behind": ("the position behind this batch", "the position after this batch"),
    "where for if": ("None where there is none", "None if there is none"),
    "what-cleft": ("sum up what the kernel reads", "sum up the kernel's input"),
    "a for per": ("four bytes a token", "four bytes per token"),
    "those that": ("keep those that failed", "keep the failed steps"),
    "one that": ("use the ones that fit", "use the tiles that fit"),
    "so many": ("after so many non-finite steps", "after N consecutive non-finite steps"),
    "beside": ("each score beside its baseline", "each score next to its baseline"),
    "tells": ("tells whether a key is known", "return whether stream.tell() is a known offset"),
    "of-constant": ('OF_RUNS = ("--checkpoint",)', 'RUN_ONLY_FLAGS = ("--checkpoint",)'),
}


@pytest.fixture
def habits(monkeypatch):
    monkeypatch.syspath_prepend(str(READING))
    import habits

    return habits


@pytest.mark.parametrize("kind", SENTENCES)
def test_a_habit_is_found_and_the_plain_words_are_not(habits, kind):
    found, not_found = ({name for name, pattern in habits.KINDS.items() if pattern.search(s)} for s in SENTENCES[kind])
    assert (found, not_found) == ({kind}, set())


def test_every_kind_has_a_sentence_and_a_ceiling(habits):
    assert list(habits.KINDS) == list(SENTENCES) == list(habits._ceilings())


def test_an_error_is_a_message_and_a_docstring_is_prose(habits):
    code = '"""The ones."""\nraise ValueError("use the ones that fit")\n'
    assert {(text.reader, text.text) for text in habits.python_texts("megabert/x.py", code)} >= {
        ("prose", "The ones."),
        ("message", "use the ones that fit"),
    }


@pytest.mark.parametrize("reader", ["message", "prose", "docs"])
def test_one_place_more_than_recorded_is_refused(habits, reader):
    counts = Counter({(kind, name): most for kind, row in habits._ceilings().items() for name, most in row.items()})
    assert not habits._is_refused(counts)
    counts["tells", reader] += 1
    assert habits._is_refused(counts)
