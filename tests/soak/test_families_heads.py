"""Exchange of fine-tuned models with transformers: largest differences, every encoder under every head."""

import pytest
import transformers
from soak.soak_table import SoakTable
from support.parity_heads import CASES, export_difference, import_difference

pytestmark = pytest.mark.soak

BAR = 1e-5


@pytest.fixture(scope="module")
def table():
    return SoakTable(
        "families_heads",
        f"largest absolute differences of logits to transformers {transformers.__version__}, same random weights, "
        f"float32, bar {BAR:g}; in: read from its folder, out: written by us and loaded there",
        f"{'model':<34} {'task':<15} {'in':>8} {'out':>8}",
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.encoder}-{case.task_name}")
def test_heads(case, table, tmp_path):
    found = [import_difference(case, tmp_path / "in"), export_difference(case, tmp_path / "out")]
    table.add(f"{case.their_class.__name__:<34} {case.task_name:<15} " + " ".join(f"{value:8.1e}" for value in found))
    assert max(found) < BAR
