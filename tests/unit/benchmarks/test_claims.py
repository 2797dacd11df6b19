from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from megabert.data.batch import pack_sequences

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def claims(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import claims

    return claims


def test_all_mask_differs_at_the_predicted_positions_alone(claims):
    batch = pack_sequences([np.array([2, 4, 9, 4, 3]), np.array([2, 9, 4, 3])], mask_id=4)
    batch.input_ids_T[3] = 8  # a predicted position that shows a random piece
    shards = SimpleNamespace(metadata=SimpleNamespace(special_ids={"mask": 4}))
    changed = claims.masked_always(batch, shards)
    assert changed.input_ids_T.tolist() == [2, 4, 9, 4, 3, 2, 9, 4, 3]
    assert batch.input_ids_T[3] == 8
    assert torch.equal(changed.masked_positions_M, batch.masked_positions_M)


def test_spread_is_mean_and_range(claims):
    assert claims.spread([{"x": 1.0}, {"x": 2.0}, {}], "x") == "1.50 (1.00 to 2.00)"
    assert claims.spread([{}], "x") == "-"
