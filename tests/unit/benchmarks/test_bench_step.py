"""The CPU benchmark gives transformers the same instances, and pairs steps on the same batch."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from megabert.data.batch import IGNORED, pack_sequences

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks" / "cpu"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import bench_step

    return bench_step


def micro_batch():
    """Instances of 3 and 2 tokens; the second's last is to be predicted."""
    packed = pack_sequences([np.array([2, 7, 3]), np.array([2, 4])], segment_b_starts=[2, 1], mask_id=4)
    return replace(packed, masked_ids_M=torch.tensor([9]))


@pytest.mark.parametrize(("limit", "width"), [(None, 3), (5, 5)])
def test_padded_batch_holds_the_same_instances(bench, limit, width):
    batch = bench.padded(micro_batch(), limit)
    assert batch["input_ids"].tolist() == [[2, 7, 3] + [0] * (width - 3), [2, 4] + [0] * (width - 2)]
    assert batch["attention_mask"].sum(1).tolist() == [3, 2]
    assert batch["token_type_ids"].sum(1).tolist() == [1, 1]
    assert batch["labels"].tolist() == [[IGNORED] * width, [IGNORED, 9] + [IGNORED] * (width - 2)]


def test_ratios_are_of_pairs(bench):
    times = {
        "megabert": [bench.Times(1.0, 2.0), bench.Times(2.0, 2.0), bench.Times(1.0, 2.0)],
        "other": [bench.Times(2.0, 3.0), bench.Times(6.0, 4.0), bench.Times(1.0, 8.0)],
    }
    row = bench.compare(times, [100, 100, 100])
    assert row["ratio by second other"] == [2.0, 1.0, 3.0]
    assert row["ratio by cpu_second other"] == [2.0, 1.5, 4.0]
    assert row["tokens per cpu_second megabert"] == 50
