"""Every family and head, both directions: the numbers are transformers'."""

import pytest
from support.parity_models import CASES, export_differences, import_differences

TOLERANCE = 1e-5  # float32, absolute, on logits of a few units


@pytest.mark.parametrize("direction", [import_differences, export_differences])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.head}-{CASES.index(case)}")
def test_numbers_equal_transformers(case, direction, tmp_path):
    differences = direction(case, tmp_path)
    assert len(differences) >= 2
    assert max(differences.values()) < TOLERANCE, differences
