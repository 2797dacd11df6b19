"""Cleaning rules on text in ten scripts: personal data is found between any letters, and prose stays."""

import typing
from pathlib import Path

import pytest

from data_prep.clean.cleaner import Cleaner
from data_prep.clean.quality import MASKS
from data_prep.config.cleaning import CleanConfig, CleaningRule
from data_prep.execution.records import Problems

SCRIPTS = Path(__file__).parents[3] / "assets" / "scripts.tsv"
PAGES = {row.split("\t")[0]: row.split("\t")[2:] for row in SCRIPTS.read_text("utf-8").splitlines()}
PLANTED = (
    ("email_addresses", "jane.doe+list@mail.uni-bonn.de"),
    ("email_addresses", "o'brien@example.com"),
    ("ip_addresses", "203.0.113.77"),
    ("ip_addresses", "2001:db8:0:0:8:800:200c:417a"),
    ("ip_addresses", "2001:db8::"),
    ("phone_numbers", "+49 30 1234567"),
    ("phone_numbers", "1-800-555-0199"),
    ("phone_numbers", "(212) 555-1234"),
)
UNSPACED = {"Thai", "Chinese", "Japanese"}
DROPS = {
    "gopher_words": (UNSPACED, "its words stand between spaces"),
    "gopher_word_length": (UNSPACED | {"Korean"}, "its words stand between spaces; those of Korean are shorter than 3"),
    "gopher_stop_words": (set(PAGES) - {"Latin"}, "its words are English until a user lists others"),
    "c4_lines": (UNSPACED, "a line needs 3 words between spaces"),
    "c4_sentences": ({"Thai"}, "Thai has no mark for the end of a sentence"),
    "fineweb_line_ends": ({"Thai"}, "Thai has no mark for the end of a sentence"),
    "fineweb_short_lines": ({"Chinese"}, "30 characters of Chinese are a sentence"),
}
"""Rules that drop prose by their definition: in which scripts, and why."""
BOUNDS = {"min_characters": 60, "gopher_min_words": 20, "c4_min_sentences": 3}
"""Bounds for a page of three sentences."""


def clean_page(rule, text):
    config = CleanConfig(rules=(rule, "duplicate_documents"), **BOUNDS)
    cleaner = Cleaner(config, Problems(), keeps_language=lambda _: True, cluster_size=lambda _: 1, kept_paragraphs=list)
    return cleaner.clean(text, "here"), cleaner.counts


@pytest.mark.parametrize("script", PAGES)
@pytest.mark.parametrize(("rule", "planted"), PLANTED, ids=[planted for _, planted in PLANTED])
def test_planted_addresses_are_found_and_nothing_around_them_is_taken(script, rule, planted):
    """Latin letters next to an address could belong to it; those of other scripts never do."""
    line = PAGES[script][1]
    middle = line.find(" ") + 1 or len(line) // 2
    before, after = line[:middle], line[middle:]
    for left, right in [(" ", " "), ("(", ")"), *([("", "")] if script != "Latin" else [])]:
        (cleaned,), counts = clean_page(rule, f"{before.rstrip()}{left}{planted}{right}{after}")
        assert cleaned == f"{before.rstrip()}{left}{MASKS[rule][1]}{right}{after}"
        assert counts[rule] == {"matches": 1, "characters": len(planted)}


@pytest.mark.parametrize("rule", typing.get_args(CleaningRule))
def test_prose_is_kept_whole_but_for_rules_that_drop_it_by_definition(rule):
    changed = {script for script, page in PAGES.items() if clean_page(rule, "\n".join(page)) != (page, {})}
    assert changed == (DROPS[rule][0] if rule in DROPS else set())
