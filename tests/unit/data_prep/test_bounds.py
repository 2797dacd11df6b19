import time

import pytest

from data_prep.clean.bounds import excess_of
from data_prep.clean.cleaner import Cleaner
from data_prep.config import CleanConfig
from data_prep.extract import markup_cost
from data_prep.extract.opening import Problems

DIALOGUE = "\u201cWho are you?\u201d she said. 'It's the captain's boy,' he said. \u00abOui.\u00bb ``So.'' (She left.) "
HOSTILE = [
    "\u201cword. " * 10_000,
    "`a. 'b. " * 10_000,
    "''' a. " * 10_000,
    "\u00ab" * 30_000,
    "a" + "\u0301\u0327" * 1000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_text_that_would_take_the_square_of_its_length_is_left_out(text):
    problems = Problems()
    assert Cleaner(CleanConfig(), problems).clean(text, "a.txt byte 7") is None
    assert problems.counts == {"excessive_documents": 1}
    assert problems.examples["excessive_documents"][0].startswith("a.txt byte 7: ")


@pytest.mark.parametrize(
    "text", [DIALOGUE * 10_000, DIALOGUE * 100 + "\u201c" + "word " * 100_000, "e\u0301" * 10_000], ids=range(3)
)
def test_sound_text_is_kept_however_long_it_is(text):
    assert excess_of(text) == ""


def test_a_line_ends_at_any_line_end():
    line = "\u201c" * 1000 + "x" * 20_000  # many of these would take too long if they were one
    assert excess_of("\u2028".join([line] * 100)) == ""
    assert "quotation marks" in excess_of(" ".join([line] * 100))


SOUND = (
    "The [[ship|boat]] left {{when|x}}.<ref>{{cite|a=b}}</ref><br><!-- {{ --><nowiki>[[</nowiki>\n"
    "== Head ==\n{|\n| a || [http://b c]\n|}\n* one\n"
)
UNCLOSED = ["{{a|", "{|\n| a\n", "<ref>a ", '<ref name="a ', "[[a|", "<!-- a ", "{{a|}} {{a|", "{{a|<ref>}}</ref>"]


@pytest.mark.parametrize("markup", UNCLOSED)
def test_markup_that_never_closes_is_found_in_time(markup):
    start = time.process_time()
    assert "without end" in markup_cost.excess_of(markup * 60_000)
    assert time.process_time() - start < 5


def test_heading_that_never_closes_is_found():
    assert "heading" in markup_cost.excess_of("== a " * 10_000)


def test_sound_markup_is_kept():
    assert markup_cost.excess_of(SOUND * 1000) == ""
    assert markup_cost.excess_of("{{a|" * 20 + SOUND * 500) == ""
