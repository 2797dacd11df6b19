from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def lamb_variants(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import lamb_variants

    return lamb_variants


def test_parts_of_a_parameter_are_its_thirds(lamb_variants):
    parameter = torch.nn.Parameter(torch.arange(12.0).view(6, 2))
    parts = lamb_variants.parts_of("self.qkv.weight", parameter, 3)
    assert [part.view().tolist() for part in parts] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert [part.parameter for part in parts] == ["0.self.qkv.weight", "1.self.qkv.weight", "2.self.qkv.weight"]


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
