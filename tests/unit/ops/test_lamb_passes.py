"""LAMB's two passes on a CPU against the formula in float64; padding between fragments stays as it is."""

import dataclasses

import pytest
import torch

from megabert.ops.lamb import Coefficients, SlotFragment
from megabert.ops.lamb.reference import apply_update, compute_update

COEFFICIENTS = Coefficients(
    beta1=0.9,
    beta2=0.999,
    eps=1e-6,
    weight_decay=0.01,
    gradient_scale=0.3,
    exp_avg_scale=1 / 0.19,
    exp_avg_sq_scale=1 / 0.002,
)


def inputs(numel: int, dtype: torch.dtype):
    generator = torch.Generator().manual_seed(numel)
    weights, gradient, m = (torch.randn(numel, generator=generator, dtype=torch.float64) for _ in range(3))
    return [tensor.to(dtype) for tensor in (weights, gradient, m, torch.rand(numel, generator=generator) ** 4)]


@pytest.mark.parametrize("measures_gradient", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
@pytest.mark.parametrize("numel", [1, 7, 70_001])
def test_update_matches_the_formula_in_float64(numel, dtype, tolerance, measures_gradient):
    w, g, m, v = inputs(numel, dtype)
    w64, g64, m64, v64 = (tensor.double().clone() for tensor in (w, g, m, v))
    squares = torch.zeros(2, 1, dtype=torch.float64)
    coefficients = dataclasses.replace(COEFFICIENTS, measures_gradient=measures_gradient)
    compute_update(w, g, m, v, coefficients=coefficients, fragments=[SlotFragment(0, numel, 0)], squares=squares)
    g64 *= 0.3  # gradient_scale
    m64 = 0.9 * m64 + 0.1 * g64
    v64 = 0.999 * v64 + 0.001 * g64**2
    u64 = (m64 / 0.19) / ((v64 / 0.002).sqrt() + 1e-6) + 0.01 * w64
    for actual, expected in ((m, m64), (v, v64), (g, u64)):
        assert (actual.double() - expected).norm() <= tolerance * expected.norm()
    measured = g64.square() / (v64 / 0.002).clamp(min=1e-12) if measures_gradient else w64.square()
    assert squares[:, 0].tolist() == pytest.approx([float(measured.sum()), float(u64.square().sum())], rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_factor_in_a_tensor_equals_a_number_and_none_at_all_changes_nothing(dtype):
    numbers, fragments = inputs(101, dtype), [SlotFragment(0, 101, 0)]
    results = {}
    for factor in (0.3, torch.tensor(0.3, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64)):
        flats = [tensor.clone() for tensor in numbers]
        if factor == 0:
            flats[1][7] = float("nan")
        squares = torch.zeros(2, 1, dtype=torch.float64)
        before = [tensor.clone() for tensor in flats]
        coefficients = dataclasses.replace(COEFFICIENTS, gradient_scale=factor)
        compute_update(*flats, coefficients=coefficients, fragments=fragments, squares=squares)
        rounded = torch.full((101,), -1.0, dtype=torch.bfloat16) if factor else flats[0].bfloat16()
        expected = rounded.clone()
        scales = torch.tensor([-0.5 * bool(factor)], dtype=torch.float64)
        apply_update(flats[0], flats[1], fragments=fragments, scales=scales, rounded=rounded)
        if factor == 0:
            assert all(torch.equal(a.nan_to_num(9), b.nan_to_num(9)) for a, b in zip(flats, before, strict=True))
            assert torch.equal(rounded, expected)
            assert not squares.any()
            continue
        assert torch.equal(rounded, flats[0].bfloat16())
        results[type(factor)] = [*flats, squares]
    assert all(torch.equal(*pair) for pair in zip(*results.values(), strict=True))


def test_segments_are_separate_and_padding_is_left_alone():
    w, g, m, v = inputs(10, torch.float32)
    w[5] = float("nan")  # ZeRO-3's padding is uninitialised memory
    before = w.clone()
    fragments = [SlotFragment(0, 3, 2), SlotFragment(3, 2, 0), SlotFragment(6, 4, 2)]
    squares = torch.zeros(2, 3, dtype=torch.float64)
    compute_update(w, g, m, v, coefficients=COEFFICIENTS, fragments=fragments, squares=squares)
    expected = torch.stack(
        [before[3:5].square().sum(), torch.tensor(0.0), before[[0, 1, 2, 6, 7, 8, 9]].square().sum()]
    )
    assert squares[0].tolist() == pytest.approx(expected.tolist(), rel=1e-6)
    apply_update(w, g, fragments=fragments, scales=torch.tensor([-1.0, 100.0, -2.0], dtype=torch.float64))
    assert torch.allclose(w[3:5], before[3:5] - g[3:5])
    assert torch.allclose(w[6:], before[6:] - 2 * g[6:])
    assert w[5].isnan()
