"""Rows in 8 bits in the interpreter: torch's form of the same cast, bit for bit.

The interpreter of Triton 3.6 rounds to 8 bits wrongly where a carry reaches the exponent, so torch casts for it; what a
card's instruction writes is not shown here. Scales and the factors of values are the kernel's own.
"""

import pytest
import torch
from triton.runtime import interpreter

from megabert.ops.fp8 import cast_rows
from megabert.ops.triton_support.row_casts import cast_rows_triton

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
TYPES = {"fp8e4nv": E4M3, "fp8e5": E5M2}
original = interpreter._convert_float


@pytest.fixture(autouse=True)
def casts_by_torch(monkeypatch):
    def convert(values, source, target, rounding):
        if target.name not in TYPES or source.name != "fp32":
            return original(values, source, target, rounding)
        floats = torch.from_numpy(values.copy()).view(torch.float32)
        return floats.to(TYPES[target.name]).view(torch.uint8).numpy()

    monkeypatch.setattr(interpreter, "_convert_float", convert)


def equal(ours, theirs):
    return torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))


@pytest.mark.parametrize("dtype8", [E4M3, E5M2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("rows", "width"), [(1, 16), (9, 48), (3, 1040), (40, 64)])
def test_values_and_scales_equal_torchs(rows, width, dtype, dtype8, generator):
    x = torch.randn(rows, width, generator=generator) * torch.logspace(-6, 4, rows)[:, None]
    x[:, ::7] *= 300
    x[rows // 2] = 0.0
    ours, by_torch = cast_rows_triton(x.to(dtype), dtype8), cast_rows(x.to(dtype), dtype8)
    assert equal(ours[0], by_torch[0])
    assert torch.equal(ours[1], by_torch[1])


@pytest.mark.parametrize("largest", [448.0, 448.5, 224.0, 1e-20, 2.0**-126, 3e38])
def test_scales_at_the_borders_of_powers(largest):
    x = torch.tensor([[largest, -largest / 3] + [0.0] * 14])
    assert torch.equal(cast_rows_triton(x, E4M3)[1], cast_rows(x, E4M3)[1])


def test_zeros_follow_up_to_the_multiple(generator):
    x = torch.randn(21, 32, generator=generator)
    values, scales = cast_rows_triton(x.t().contiguous().t(), E4M3, 16)
    assert values.shape == (32, 32)
    assert scales.shape == (32, 1)
    assert equal(values[:21], cast_rows(x, E4M3)[0])
    assert not values[21:].float().any()
    assert scales.isfinite().all()


@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
def test_what_is_not_finite_is_nan_in_its_row_alone(bad, generator):
    x = torch.randn(4, 32, generator=generator)
    clean = cast_rows_triton(x, E4M3)[0]
    x[2, 5] = bad
    values = cast_rows_triton(x, E4M3)[0]
    assert values[2].float().isnan().any()
    assert equal(values[[0, 1, 3]], clean[[0, 1, 3]])
