"""Sums of squares of millions of elements, on a CPU and as on a GPU."""

import pytest
import torch

from megabert.ops.sums_of_squares import sums_of_squares


def test_squares_are_summed_in_float64():
    values = torch.randn(2_000_000, generator=torch.Generator().manual_seed(0))
    exact = values.double().square()
    sums = sums_of_squares([values, values[:7], values[:0]], torch.device("cpu"))
    assert sums.tolist() == pytest.approx([float(exact.sum()), float(exact[:7].sum()), 0.0], rel=1e-12)
    as_on_gpu = torch.stack(torch._foreach_norm([values, values[:7]], 2, dtype=torch.float64)).square()
    assert as_on_gpu.tolist() == pytest.approx(sums[:2].tolist(), rel=1e-10)
