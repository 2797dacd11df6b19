"""What to expect of a recipe: published results, and the curves that the package ships."""

from pathlib import Path

import pytest

from megabert.settings.config.loading import load_run_config, shipped_names
from megabert.tooling.measurements.reference import (
    FOLDER,
    describe_expected,
    published_results,
    read_reference,
    reference_for,
    science_fields,
)

ROOT = Path(__file__).parents[4]
OURS = ("debug", "demo", "english_small", "korean_small", "speedrun")
"""Recipes without a published counterpart."""
SHIPPED = sorted(FOLDER.glob("*.json"))


@pytest.mark.parametrize("name", shipped_names("recipe"))
def test_every_recipe_has_a_published_result_with_its_source_or_is_our_own(name):
    published = published_results().get(name)
    assert (published is None) == name.startswith(OURS)
    assert published is None or (published.result and published.source)


def test_the_page_has_every_published_result():
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    for name, published in published_results().items():
        assert f"| `{name}` | {published.result} | {published.source} | {published.differs or '-'} |\n" in page
    assert not set(published_results()) - set(shipped_names("recipe"))


def test_the_estimate_names_the_result_with_its_source(megabert):
    assert f"{describe_expected('albert_base')[0]}\n" in megabert("estimate", "--recipe", "albert_base").out
    published = published_results()["albert_base"]
    assert describe_expected("albert_base")[0].startswith(f"published: {published.result} ({published.source}")
    assert describe_expected("another") == []


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_curves_are_small_and_of_the_recipe_as_it_is(path):
    reference = read_reference(path)
    assert path.stat().st_size < 40_000
    assert path.stem.partition("-")[0] == reference.recipe
    assert len(set(reference.seeds)) >= 2
    flags = {"model": {"vocab_size": reference.vocab_size}, "precision": reference.config["precision"]}
    config = load_run_config(reference.recipe, flags=flags)
    assert reference.config == science_fields(config), "write the curves anew: benchmarks/reference_curves.py"
    assert [phase.max_seq_length for phase in config.phases] == [phase.max_seq_length for phase in reference.phases]
    assert reference_for(config, list(reference.data_sha256)) == reference
    assert any(line.startswith("measured: held-out masked-LM loss") for line in describe_expected(reference.recipe))
