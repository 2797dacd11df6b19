import time

import pytest

from data_prep.clean.cleaner import Cleaner, excess_of, repair
from data_prep.config.cleaning import CleanConfig
from data_prep.execution.records import Problems
from data_prep.extract import wikipedia


def test_text_that_would_take_the_square_of_its_length_is_left_out():
    problems = Problems()
    assert Cleaner(CleanConfig(), problems).clean("a" + "\u0301\u0327" * 1000, "a.txt byte 7") is None
    assert problems.counts == {"excessive_documents": 1}
    assert problems.examples["excessive_documents"][0].startswith("a.txt byte 7: ")


@pytest.mark.parametrize("name", ["gopher_max_top_ngrams", "gopher_max_repeated_ngrams"])
def test_bounds_of_more_lengths_of_runs_than_make_sense_are_refused(name):
    CleanConfig(rules=(), **{name: (0.1,) * 20})
    with pytest.raises(ValueError, match="at most 20 items"):
        CleanConfig(rules=(), **{name: (0.1,) * 21})


def test_sound_text_is_kept_however_long_it_is():
    assert excess_of("e\u0301" * 10_000) == ""


def test_repair_reads_a_long_word_once():
    word = "\u4eca" * 300_000  # from each of its letters to its end would be 10^11 characters
    text = f"caf\u00e9\u201d {word}"
    assert repair(text) == text


SOUND = (
    "The [[ship|boat]] left {{when|x}}.<ref>{{cite|a=b}}</ref><br><!-- {{ --><nowiki>[[</nowiki>\n"
    "== Head ==\n{|\n| a || [http://b c]\n|}\n* one\n"
)
UNCLOSED = ["{{a|", "{|\n| a\n", "<ref>a ", '<ref name="a ', "[[a|", "<!-- a ", "{{a|}} {{a|", "{{a|<ref>}}</ref>"]


@pytest.mark.parametrize("markup", UNCLOSED)
def test_markup_that_never_closes_is_found_in_time(markup):
    start = time.process_time()
    assert "without end" in wikipedia.markup_excess(markup * 60_000)
    assert time.process_time() - start < 5


def test_heading_that_never_closes_is_found():
    assert "heading" in wikipedia.markup_excess("== a " * 10_000)


def test_sound_markup_is_kept():
    assert wikipedia.markup_excess(SOUND * 1000) == ""
    assert wikipedia.markup_excess("{{a|" * 20 + SOUND * 500) == ""
