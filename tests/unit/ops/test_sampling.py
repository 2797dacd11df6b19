"""Keyed draws from a softmax: frequencies, independence of rows and of chunks."""

import numpy as np
import pytest
import torch

from megabert.ops import sampling
from megabert.ops.sampling import sample


def keys(count: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(-(2**31), 2**31, count).astype(np.int32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_frequencies_are_the_softmax(dtype):
    rows = 40_000
    logits_V = torch.tensor([0.0, 1.0, -2.0, 2.0, -torch.inf, 0.5], dtype=dtype)
    drawn = sample(logits_V.expand(rows, -1), keys(rows)).numpy()
    probabilities = torch.softmax(logits_V.double(), 0).numpy()
    counts = np.bincount(drawn, minlength=6)
    assert counts[4] == 0
    assert (np.abs(counts - rows * probabilities) <= 5 * np.sqrt(rows * probabilities * (1 - probabilities))).all()


def test_a_draw_depends_on_its_own_row_alone(monkeypatch):
    logits_MV = torch.randn(50, 300, generator=torch.Generator().manual_seed(1))
    drawn = sample(logits_MV, keys(50))
    order = torch.randperm(50, generator=torch.Generator().manual_seed(2))
    assert sample(logits_MV[order], keys(50)[order]).equal(drawn[order])
    monkeypatch.setitem(sampling.CHUNK, "cpu", 700)  # two rows at a time
    assert sample(logits_MV, keys(50)).equal(drawn)
    assert not sample(logits_MV, keys(50, seed=1)).equal(drawn)


def test_noise_of_neighbours_is_not_related():
    """Keys that differ by one, as hashes may: no more than chance of equal draws."""
    rows = 20_000
    logits = torch.zeros(rows, 16)
    one = sample(logits, torch.arange(rows, dtype=torch.int32))
    other = sample(logits, torch.arange(1, rows + 1, dtype=torch.int32))
    assert abs((one == other).double().mean() - 1 / 16) < 5 * (15 / 16 / 16 / rows) ** 0.5


def test_no_rows_give_no_draws():
    assert sample(torch.zeros(0, 5), keys(0)).shape == (0,)
