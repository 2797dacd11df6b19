from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def lamb_variants(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import lamb_variants

    return lamb_variants


def test_table_has_mean_and_range_of_the_last_step(lamb_variants):
    values = {key: [9.0, 2.0] for key in lamb_variants.COLUMNS.values()}
    runs = [{"variant": "apex", "peak": 6e-3, "seed": seed, "steps": [50, 100], **values} for seed in range(2)]
    runs[1] = runs[1] | {"biases": [9.0, 0.001]}
    row = lamb_variants.table(runs).splitlines()[-1].split("  ")
    assert [cell.strip() for cell in row if cell.strip()] == [
        "0.006",
        "apex",
        "2.000 (2.000 to 2.000)",
        "1.0e+00 (1.0e-03 to 2.0e+00)",
        "2.000 (2.000 to 2.000)",
        "2.000 (2.000 to 2.000)",
    ]


def test_root_mean_square_is_over_all_elements(lamb_variants):
    assert lamb_variants.rms([torch.tensor([3.0, 4.0]), torch.zeros(2)]) == pytest.approx(2.5)
