"""The comparison of the ways of sharing embeddings: its recipes, its scores, its tables."""

from pathlib import Path

import pytest

from megabert.settings.config.loading import merge_layers
from megabert.settings.config.run import RunConfig

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def sharing(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.sharing import __main__ as sharing

    return sharing


def result(sharing, seed, auc, loss):
    return {
        "corpus": "english", "start": "none", "sharing": sharing, "seed": seed, "unigram": 6.0,
        "steps": [100, 200], "auc": [0.5, auc], "loss": [loss],
    }  # fmt: skip


def test_recipes_differ_in_sharing_and_start_alone_and_train_as_long(sharing):
    for start, (as_masked_lms, _) in sharing.STARTS.items():
        recipe = sharing.recipe_of(sharing.Cell("english", "shared", start, 1))
        config = merge_layers(RunConfig, recipe)
        assert config.model.embedding_sharing == "shared"
        assert sum(phase.num_steps for phase in config.phases) == (3000 if start == "longer" else 1600)
        assert [phase.replaced_tokens for phase in config.phases] == [False] * (as_masked_lms > 0) + [True]


def test_auc_without_specials_is_what_is_left_if_they_are_all_told_apart(sharing):
    share = 2 / (40 * 0.85)
    assert sharing.without_specials(share + (1 - share) * 0.5, 40) == pytest.approx(0.5)


def test_table_and_curves_have_the_seeds_that_ran(sharing, tmp_path):
    results = [result("shared", 1, 0.6, 5.5), result("shared", 2, 0.8, 5.7)]
    _, row = sharing.table(results, "english").splitlines()
    assert row.split()[:5] == ["none", "shared", "1,", "2", "0.700"]
    assert row.endswith("0.400 (0.300 to 0.500)")
    assert sharing.table(results, "korean") == "nothing was run yet"
    sharing.draw(results, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000
