from argparse import Namespace
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def families(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.families import __main__ as families

    return families


def result(candidate, rate, seed, losses, **more):
    return {
        "corpus": "english",
        "candidate": candidate,
        "rate": rate,
        "seed": seed,
        "parameters": 700_000,
        "tokens_a_step": 1000.0,
        "steps": [0, 40, 80],
        "loss": losses,
        "unigram": 6.0,
        "cpu_s": 30.0,
        **more,
    }


RESULTS = [
    result("bert", 0.002, 1, [7.0, 6.0, 5.95]),
    result("bert", 0.004, 1, [7.0, 6.2, 6.1]),
    result("bert", 0.002, 2, [7.0, 6.0, 5.85], cpu_s=None),
    result("modernbert", 0.002, 1, [7.0, 5.8, 5.0]),
]


def test_all_parameters_are_equal_to_half_a_percent(families):
    from megabert.models.build import build_model
    from megabert.settings.config.model import ModelConfig

    counts = []
    for candidate in families.CANDIDATES:
        with torch.device("meta"):
            config = ModelConfig(preset="tiny", vocab_size=2048, max_position_embeddings=64, **candidate.flags)
            model = build_model(config, objective=candidate.objective)
        counts.append(sum(parameter.numel() for parameter in model.parameters()))
    assert max(counts) / min(counts) < 1.005


def test_first_seed_tries_the_rates_and_the_others_take_the_best(families):
    options = Namespace(corpora=["english", "korean"], seeds=[1, 2], candidates=["bert"], rates=[0.002, 0.004])
    cells = list(families.cells_of(options, RESULTS))
    expected = [("english", 0.002, 1), ("english", 0.004, 1), ("english", 0.002, 2)]
    expected += [("korean", 0.002, 1), ("korean", 0.002, 2)]
    assert [(cell.corpus, cell.rate, cell.seed) for cell in cells] == expected


def test_table_has_the_seeds_at_the_best_rate_and_the_best_family_first(families):
    header, *rows = families.table(RESULTS, "english").splitlines()
    assert header.split()[0] == "family"
    modern, bert = ([cell.strip() for cell in row.split("  ") if cell.strip()] for row in rows)
    assert modern == [
        "modernbert", "700,000", "0.002", "0.200 (0.200 to 0.200)", "1.000 (1.000 to 1.000)", "40", "30"
    ]  # fmt: skip
    assert bert[3:] == ["0.000 (0.000 to 0.000)", "0.100 (0.050 to 0.150)", "never, 80", "30"]


def test_curves_are_drawn(families, tmp_path):
    families.draw(RESULTS, ["english"], tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000
