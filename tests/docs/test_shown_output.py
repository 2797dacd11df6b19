"""Reports that pages show have the form that the program prints."""

import re
from pathlib import Path

import pytest

from data_prep.checks.stats import describe_corpus

ROOT = Path(__file__).parents[2]
CORPUS = {
    "documents": 14_691,
    "validation_documents": 966,
    "sentences": 199_320,
    "tokens": 5_724_262,
    "unknown_tokens": 0,
    "tokens_read": 5_724_262,
    "documents_by_source": {"bills": 45_341, "speeches": 2_927},
    "kept_documents_by_source": {"bills": 11_764, "speeches": 2_927},
    "tokens_by_source": {"bills": 2_751_027, "speeches": 2_973_235},
    "dropped": {},
}


@pytest.mark.parametrize("page", ["tutorial.md", "tutorial.ko.md"])
def test_tutorial_shows_the_sources_as_stats_does(page):
    shown = (ROOT / "docs" / page).read_text(encoding="utf-8")
    printed = describe_corpus(CORPUS)
    table = [line for line in printed if re.match(r"(source|bills|speeches)\s", line)]
    assert len(table) == 3
    assert "\n".join(table) in shown
