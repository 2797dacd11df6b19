"""Cleaning of documents: what each rule drops, counts and shows; and text that would take the square of its length."""

import re
import time

import pytest
from unit.data_prep.conftest import write_jsonl

from data_prep.clean.cleaner import CONTROLS, Cleaner, excess_of, find_controls
from data_prep.clean.mojibake import repair
from data_prep.config.cleaning import CleanConfig
from data_prep.execution.records import Problems
from data_prep.extract import wikipedia
from megabert.foundation.errors import ConfigError
from megabert.settings.config import loading


def cleaner(*rules, problems=None, **options):
    return Cleaner(CleanConfig(rules=rules, **options), problems or Problems())


def misread(text, encoding="cp1252"):
    table = {byte: bytes([byte]).decode(encoding, "ignore") or chr(byte) for byte in range(256)}
    return "".join(table[byte] for byte in text.encode())


GOOD = [
    "plain",
    "\u00c9t\u00e9 \u00e0 la mer, caf\u00e9\u2026\u201d dit-il.",
    "JOS\u00c9\u2014 said",
    "S\u00c3O PAULO",
    "\u00abAT\u00c9 AMANH\u00c3\u00bb, disse ele \u00e0 m\u00e3e.",
    "AT\u00c9 AMANH\u00c3\u00bb",
    "IRM\u00c3\u2026 IRM\u00c3\u2026 IRM\u00c3\u2026",
    "\u00abL\u00c3\u00bb e algod\u00e3o",
    "\uc548\ub155\ud558\uc138\uc694",
    "\u03b1\u03b2\u03b3 \u00ab\u00bb",
]


@pytest.mark.parametrize("text", GOOD)
def test_sound_text_is_left_alone(text):
    assert repair(text) == text


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1"])
@pytest.mark.parametrize(
    "text", ["caf\u00e9 \u2013 \u201cquoted\u201d", "na\u00efve", "\uc548\ub155\ud558\uc138\uc694", "smile \U0001f600"]
)
def test_misread_text_is_repaired_exactly(text, encoding):
    assert repair(misread(text, encoding)) == text
    assert repair(misread(misread(text, encoding), encoding)) == text


def test_misread_text_that_cannot_be_undone_exactly_is_dropped_not_guessed():
    damaged = misread("caf\u00e9 noir") + " \uc548"  # a character that the code page lacks
    assert repair(damaged) is None
    problems = Problems()
    clean = cleaner("mojibake", problems=problems)
    mendable = misread("na\u00efve")
    assert clean.clean(f"Good line.\n{damaged}\n{mendable}", "file 3") == ["Good line.", "na\u00efve"]
    assert clean.counts["mojibake_dropped"]["paragraphs"] == 1
    assert clean.counts["mojibake_repaired"]["paragraphs"] == 1
    assert problems.examples["mojibake_dropped"][0].startswith("file 3: ")


def test_controls_are_removed_and_line_breaks_kept():
    clean = cleaner("control_characters")
    assert clean.clean("a\x00b\u200b c\ufeff\x0cnext\u2028line\u200dx", "") == ["ab c", "next", "line\u200dx"]
    assert clean.counts["control_characters"]["characters"] == 3


def test_lines_that_can_be_printed_have_no_controls():
    characters = [*map(chr, [*range(0x3100), *range(0xFE00, 0x10010), *range(0x1F000, 0x110000, 997)])]
    for text in (*characters, *(f"\u201cab{character}c\u201d\n" for character in characters)):
        assert (find_controls(text) is None) == (CONTROLS.search(text) is None), ascii(text)


def test_boilerplate_lines_are_dropped_and_prose_kept():
    lines = ["All rights reserved.", "* * *", "Page 3 of 12", "Privacy Policy", "This website uses cookies to work."]
    prose = ["He said that all rights are reserved by nature to those who wait for them in silence.", "Next came he."]
    clean = cleaner("boilerplate", boilerplate=("^Advert",))
    assert clean.clean("\n".join([*lines, "Advert here", *prose]), "") == prose
    assert clean.counts["boilerplate"]["paragraphs"] == 6


def test_patterns_of_the_user_do_not_disturb_each_other():
    clean = cleaner("boilerplate", boilerplate=("(?i)cookie", "(a)b", r"^(\w)\1$", "(?P<x>foo)", "(?P<x>bar)"))
    assert clean.clean("COOKIE\nxab\nzz\nfoo\nbar\nA line that stays here.", "") == ["A line that stays here."]


def test_repeated_lines_are_dropped_and_so_are_documents_made_of_them():
    clean = cleaner("repeated_lines")
    assert clean.clean("One line.\nOne line.\nOther line, which is much longer than it.\nOne line.", "") == [
        "One line.",
        "Other line, which is much longer than it.",
        "One line.",
    ]
    assert clean.clean("Same again.\n" * 9 + "End.", "x") is None
    assert clean.counts["repeated_lines"]["documents"] == 1


def test_length_bounds_documents():
    clean = cleaner("length", min_characters=10, max_characters=20)
    assert clean.clean("Too short", "") is None
    assert clean.clean("Long enough", "") == ["Long enough"]
    assert clean.clean("It is too long for that.", "") is None
    assert clean.clean("", "") == []  # an empty document is counted as such


def test_rules_that_are_off_do_nothing():
    text = "a\x01\n* * *\na\x01"
    assert cleaner().clean(text, "") == ["a\x01", "* * *", "a\x01"]


def test_bad_pattern_is_refused(make_config):
    with pytest.raises(ValueError, match="no regular expression"):
        CleanConfig(boilerplate=("(",))
    with pytest.raises(ConfigError, match="no regular expression"):
        loading.merge_layers(CleanConfig, {"boilerplate": ["("]})


def test_stats_show_what_each_rule_dropped_with_examples(texts, tmp_path, small_build, megabert_data):
    path = write_jsonl(tmp_path / "in.jsonl", [*(text + "\nAll rights reserved.\x01" for text in texts[:30]), "Short."])
    with open(path, "ab") as stream:
        stream.write(b"{broken\n")
    small_build("--input", path, "--max-bad-share", "0.1", "--clean", "control_characters", "boilerplate", "length")
    shown = megabert_data("stats", tmp_path / "out").out
    for words in (
        "cleaned by boilerplate: 30 paragraphs, 600 characters",
        "cleaned by control characters: 30 characters",
        "cleaned by length: 1 documents",
        "bad lines 1",
        "line 32 is no JSON",
    ):
        assert words in shown
    assert re.search(rf"  boilerplate: {path} byte \d+: '", shown)


def test_documents_in_other_languages_are_dropped_by_the_rule_language():
    problems = Problems()
    clean = Cleaner(CleanConfig(rules=("language",)), problems, keeps_language=lambda text: "whale" in " ".join(text))
    assert clean.clean("The whale swam away.\nNobody saw it again.", "") is not None
    assert clean.clean("Der Wal schwamm davon.", "file 7") is None
    assert clean.clean("", "") == []  # without text there is no language
    assert clean.counts["language"] == {"documents": 1, "characters": 22}
    assert problems.examples["language"] == ["file 7: 'Der Wal schwamm davon.'"]


def test_recorded_verdicts_stand_for_the_rules_on_whole_documents(monkeypatch):
    config = CleanConfig(rules=("boilerplate", "length", "gopher_words"), min_characters=12, gopher_min_words=3)
    texts = ["Too short", "It has three words.\nPage 3 of 12", "", "Two words-of-it", "And these are some more."]
    first = Cleaner(config, Problems())
    kept = [first.clean(text, "") for text in texts]
    assert kept == [None, ["It has three words."], [], None, ["And these are some more."]]
    monkeypatch.setattr(Cleaner, "_first_to_drop", None)  # to ask a rule is an error
    second = Cleaner(config, Problems(), verdicts=first.verdicts)
    assert [second.clean(text, "") for text in texts] == kept
    assert second.counts == first.counts


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
