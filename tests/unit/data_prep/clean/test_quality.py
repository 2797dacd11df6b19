"""Each rule on quality, on both sides of each of its limits; its loops against plain Python; and masks."""

import random
import re
from collections import Counter

import pytest

from data_prep.clean.cleaner import Cleaner, paragraphs_of
from data_prep.clean.quality import (
    DOCUMENT_RULES,
    FIRST_REPEATED,
    FIRST_TOP,
    LINE_RULES,
    MASKS,
    Measured,
    character_classes,
)
from data_prep.config.cleaning import CleanConfig
from data_prep.execution.records import Problems
from megabert.tokens.tokenization import compose


def cleaner(rule, **bounds):
    return Cleaner(CleanConfig(rules=(rule,), **bounds), Problems())


def lines(*texts):
    return "\n".join(texts)


def numbered(count, text="word"):
    return " ".join(f"{text}{number}" for number in range(count))


PROSE = [
    "It was the third day of the voyage, and nobody on board had seen a ship since the morning before.",
    "The captain came up at noon to take the height of the sun; he said little, as always, and went below.",
    "What would we have done with more wind? Perhaps the coast would be near by now, with fresh water and fruit.",
    "Two of the men were ill. The cook gave them broth, which was thin but hot.",
]
OUTER = [f"\u2022 point {number}" for number in range(9)]

# Rule, a document that is just kept, a document that is just dropped.
LIMITS = (
    ("gopher_words", numbered(50), numbered(49)),
    ("gopher_words", "word " * 100_000, "word " * 100_001),
    ("gopher_word_length", "abc abc abc", "abc abc ab"),
    ("gopher_word_length", "abcdefghij " * 3, "abcdefghij abcdefghij abcdefghijk"),
    ("gopher_symbols", numbered(9) + " #tag", numbered(8) + " #tag"),
    ("gopher_symbols", numbered(9) + " so...", numbered(8) + " so..."),
    ("gopher_symbols", numbered(9) + " so\u2026", numbered(8) + " so\u2026"),
    ("gopher_bullets", lines(*OUTER, "a line"), lines(*OUTER, "- one", "- two")),
    ("gopher_ellipses", lines(*["on..."] * 3, *"abcdefg"), lines(*["on..."] * 4, *"abcdef")),
    ("gopher_letters", numbered(8) + " 1 2", numbered(7) + " 1 2"),
    ("gopher_stop_words", "The cat, and nothing else", "The cat; the dog; THE end"),
    ("gopher_repeated_lines", lines(*"aaaabcdef", "long enough a line"), lines(*"aaaaabcde", "long enough a line")),
    ("gopher_repeated_lines", lines("ab", "ab", "c", "defgh"), lines("ab", "ab", "c", "defg")),
    ("gopher_top_ngrams", "a b " * 2 + numbered(50), "alpha beta " * 9 + numbered(20)),
    ("gopher_repeated_ngrams", numbered(30) + " " + numbered(4), numbered(20) + " " + numbered(10)),
    ("c4_lorem_ipsum", "Lorem is here, ipsum there.", "Here is Lorem ipsum."),
    ("c4_brackets", "a [b] (c)", "a { b"),
    ("c4_sentences", "One. Two! Three? Four. Five.", "One. Two! Three? Four, about 5.5 of it"),
    ("c4_sentences", "\u0915\u0964" * 5, "\u0915\u0964" * 4),
    ("c4_sentences", "\u0639\u061f \u0639\u06d4" * 3, "\u0639\u061f \u0639\u06d4" * 2),
    ("c4_sentences", "\u4e00\u3002\u4e8c\uff01\u4e09\uff1f\u56db\u3002\u4e94\u3002", "\u4e00\u3002\u4e8c\uff01"),
    ("fineweb_line_ends", lines("It ends.", *"abcdefg"), lines("It ends.", *"abcdefgh")),
    ("fineweb_short_lines", lines("x" * 30, "short"), lines("x" * 29, "short")),
    ("fineweb_repeated_lines", lines("a", "a", "b" * 9), lines("a", "a", "b" * 8)),
)  # fmt: skip


@pytest.mark.parametrize(("rule", "kept", "dropped"), LIMITS, ids=[f"{i}-{row[0]}" for i, row in enumerate(LIMITS)])
def test_document_at_the_limit_is_kept_and_one_past_it_is_dropped(rule, kept, dropped):
    clean = cleaner(rule)
    assert clean.clean(kept, "here") == [line.strip() for line in kept.splitlines()]
    assert not clean.counts
    assert clean.clean(dropped, "here") is None
    assert clean.counts[rule]["documents"] == 1


def test_every_document_rule_has_a_limit_in_the_table():
    assert {rule for rule, _, _ in LIMITS} == set(DOCUMENT_RULES)


@pytest.mark.parametrize("length", range(2, 5))
def test_top_runs_of_each_length_have_a_limit_of_their_own(length):
    share = 0.5 + length / 100
    bounds = tuple(share if number == length else 1.0 for number in range(2, 5))
    run = " ".join("abcd"[:length])  # twice in a text of `total` characters
    for total, is_kept in ((int(2 * len(run) / share) + 1, True), (int(2 * len(run) / share), False)):
        rest = "x" * (total - 2 * len(run) - 2)
        clean = cleaner("gopher_top_ngrams", gopher_max_top_ngrams=bounds)
        assert (clean.clean(f"{run} {rest} {run}", "here") is not None) == is_kept


@pytest.mark.parametrize("length", range(5, 11))
def test_repeated_runs_of_each_length_are_counted_once(length):
    run = " ".join(f"{letter}1" for letter in "abcdefghij"[:length])
    text = f"{run} {'x' * 40} {run}"
    share = 2 * length / len(text)
    for most, is_kept in ((share + 0.001, True), (share - 0.001, False)):
        bounds = tuple(min(1.0, most) if number == length else 1.0 for number in range(5, 11))
        clean = cleaner("gopher_repeated_ngrams", gopher_max_repeated_ngrams=bounds)
        assert (clean.clean(text, "here") is not None) == is_kept


@pytest.mark.parametrize(
    ("rule", "kept", "dropped"),
    [
        ("c4_lines", "Three words here.", "Two words."),
        ("c4_lines", 'He said "it is."', "It has no end"),
        ("c4_lines", "Is it so?", "And so on..."),
        ("c4_lines", "\u0915 \u0915 \u0915\u0964", "\u0915 \u0915 \u0915,"),
        ("c4_lines", f"A word {'x' * 999}.", f"A word {'x' * 1000}."),
        ("c4_lines", f"A word {'x' * 999} {'y' * 999}.", f"A {'x ' * 700} word {'y' * 1001} {'x ' * 700}."),
        ("c4_javascript", "It is written in Java.", "Please turn JavaScript on."),
        ("c4_policies", "The policy is private.", "Read our Privacy Policy first."),
        ("c4_policies", "It has coo\u0137ies.", "It uses coo\u212aies."),
    ],
)
def test_lines_are_dropped_one_by_one(rule, kept, dropped):
    clean = cleaner(rule)
    assert clean.clean(lines(kept, dropped), "here") == [kept]
    assert clean.counts[rule]["paragraphs"] == 1
    assert rule in LINE_RULES


@pytest.mark.parametrize("rule", [*DOCUMENT_RULES, *LINE_RULES, *MASKS])
def test_prose_and_empty_text_pass_every_rule(rule):
    clean = cleaner(rule)
    assert clean.clean(lines(*PROSE), "here") == PROSE
    assert clean.clean("\n", "here") == []
    assert not clean.counts


@pytest.mark.parametrize(
    ("rule", "text", "masked"),
    [
        ("email_addresses", "Write to jane.doe+x@mail.uni.edu.", "Write to email@example.com."),
        ("email_addresses", "\u00e9mile@exemple.fr, not a@b nor @name", "email@example.com, not a@b nor @name"),
        ("ip_addresses", "at 8.8.8.8, and 10.0.0.1:80.", "at 192.0.2.1, and 192.0.2.1:80."),
        ("ip_addresses", "version 1.2.3.4.5, 300.1.1.1, 1.2.3", "version 1.2.3.4.5, 300.1.1.1, 1.2.3"),
        ("ip_addresses", "fe80::1ff:fe23:4567:890a here", "192.0.2.1 here"),
        ("ip_addresses", "2001:0db8:0000:0000:0000:ff00:0042:8329", "192.0.2.1"),
        ("ip_addresses", "at 12:30:45, std::vector", "at 12:30:45, std::vector"),
        ("phone_numbers", "Call +49 30 1234 5678 now", "Call 555-0100 now"),
        ("phone_numbers", "(212) 555-1234 or 212-555-1234.", "555-0100 or 555-0100."),
        ("phone_numbers", "In 1999-2001, 3.14159, 12345678", "In 1999-2001, 3.14159, 12345678"),
        ("phone_numbers", "+44 (0)20 7946 0018 or +12125551234", "555-0100 or 555-0100"),
        ("email_addresses", "Ask 'o'brien@example.com', @b", "Ask 'email@example.com', @b"),
        (
            "email_addresses",
            "(\u0438\u0432\u0430\u043d@\u043f\u043e\u0447\u0442\u0430.\u0440\u0444)",
            "(email@example.com)",
        ),
        ("email_addresses", "\u5c0f\u660e@\u4f8b.\u4e2d\u56fd ", "email@example.com"),
        ("email_addresses", "\u5173\u6ce8\u6211@jane.doe now", "\u5173\u6ce8\u6211@jane.doe now"),
        ("ip_addresses", "a::b, dead::beef, ::, x[1::2]", "a::b, dead::beef, ::, x[1::2]"),
        ("ip_addresses", "[::1]:80 is not 2001:db8::/32", "[192.0.2.1]:80 is not 192.0.2.1/32"),
        ("phone_numbers", "(+49 30 1234567), +49 (30) 1234567", "(555-0100), 555-0100"),
        ("phone_numbers", "1-800-555-0199 is not +3.14159265358.", "555-0100 is not +3.14159265358."),
        ("phone_numbers", "It rose by +150, +1,000 or +1 000 000", "It rose by +150, +1,000 or +1 000 000"),
    ],
)
def test_personal_data_is_masked_and_like_text_is_not(rule, text, masked):
    clean = cleaner(rule)
    assert clean.clean(text, "here") == [masked]
    assert clean.counts.get(rule, {}).get("matches", 0) == (text != masked) * max(
        1, masked.count("192") + masked.count("555-0100")
    )


def test_examples_of_masked_text_do_not_show_the_data():
    problems = Problems()
    Cleaner(CleanConfig(rules=("email_addresses",)), problems).clean("Ask jane@uni.edu about it.", "here")
    assert problems.examples["email_addresses"] == ["here: 'Ask email@example.com about it.'"]


@pytest.mark.parametrize("rule", MASKS)
@pytest.mark.parametrize(
    "text", ["a.", "a@", "1.", "+1 ", "1:", "f:", "a-", "1 (2) ", "x@y.", "\u0430.", "\u4e00", "1-", "a'"]
)
def test_masks_take_time_that_grows_with_the_text(rule, text):
    """A pattern that backtracks would take hours, and this test would never end."""
    assert cleaner(rule).clean(text * 50_000 + "@", "here") is not None


def test_bounds_in_the_wrong_order_are_refused():
    with pytest.raises(ValueError, match="gopher_min_words=60: is above gopher_max_words=50"):
        CleanConfig(rules=("gopher_words",), gopher_min_words=60, gopher_max_words=50)


def texts_with_data():
    """Texts of few characters, most of them such as addresses and numbers consist of, in lines."""
    chance = random.Random(6)
    rare = ["\u0661", "\uff11", "\u4e00", "\u00e9", "::", "@a.bc", "+49 30 1234567", "fe80::1", "\U0001f600", "\n"]
    for alphabet in ("0123456789.:af\n", "012-. ()+\n", "a1@.-\n", "1:\n", "1.\n", "0123:abcdef\n"):
        for number in range(400):
            parts = [*alphabet * (1 + number % 4), *rare[: number % 11]]
            yield "".join(chance.choice(parts) for _ in range(60 if number % 9 else 200))


@pytest.mark.parametrize("rule", MASKS)
def test_only_lines_without_a_match_are_passed_over(rule):
    """The pattern alone, over the whole text, is the definition."""
    pattern, replacement, _ = MASKS[rule]
    pattern, found = re.compile(pattern), 0
    for text in texts_with_data():
        problems = Problems()
        clean = Cleaner(CleanConfig(rules=(rule,)), problems)
        masked, matches = pattern.subn(replacement, text)
        assert clean.clean(text, "here") == paragraphs_of(compose(masked))
        assert clean.counts.get(rule, {}).get("matches", 0) == matches
        if matches:
            start = pattern.search(text).start()
            assert problems.examples[rule] == [f"here: {masked[max(0, start - 30) : start + len(replacement) + 30]!r}"]
            assert clean.counts[rule]["characters"] == sum(len(match[0]) for match in pattern.finditer(text))
        found += matches
    assert found > 100


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
