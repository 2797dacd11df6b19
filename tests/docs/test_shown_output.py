"""Reports and figures that pages show are those that the program prints."""

import re
import shlex
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


@pytest.mark.parametrize("page", ["your_text.md", "tutorial.ko.md"])
def test_tutorial_shows_the_sources_as_stats_does(page):
    shown = (ROOT / "docs" / page).read_text(encoding="utf-8")
    printed = describe_corpus(CORPUS)
    table = [line for line in printed if re.match(r"(source|bills|speeches)\s", line)]
    assert len(table) == 3
    assert "\n".join(table) in shown


def test_cost_of_the_own_modernbert_is_that_of_its_own_command(tmp_path, monkeypatch, megabert_data):
    page = (ROOT / "docs" / "your_text.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    Path("build.yaml").write_text(re.search(r"# build\.yaml\n(.*?)```", page, re.DOTALL)[1], encoding="utf-8")
    command = re.search(r"^    megabert-data (estimate .*)$", page, re.MULTILINE)[1]
    printed = megabert_data(*shlex.split(command)).out
    minutes = float(re.search(r"^time: ([\d.]+) min", printed, re.MULTILINE)[1])
    peak, end = map(float, re.search(r"disk: ([\d.]+) GB at the peak, ([\d.]+) GB at the end", printed).groups())
    assert f"{minutes:.0f} minutes on 16 cores, {peak:.0f} GB of disk at the peak and {end:.0f} GB at the end" in page
