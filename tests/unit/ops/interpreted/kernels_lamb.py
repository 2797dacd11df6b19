"""LAMB kernels in the interpreter: both passes over fragments in any order, with padding between them."""

import dataclasses

import pytest
import torch
from support.soak import in_soak
from unit.ops.test_lamb_passes import COEFFICIENTS

from megabert.foundation.errors import KernelError
from megabert.ops.lamb import SlotFragment, lamb_passes
from megabert.ops.triton_support.tile_sizes import LAMB_CHUNK

# slot 2 twice and out of order, a gap of padding at 8, a fragment of several chunks, an empty one
FRAGMENTS = [
    SlotFragment(0, 5, 2),
    SlotFragment(5, 3, 0),
    SlotFragment(9, LAMB_CHUNK + 7, 1),
    SlotFragment(LAMB_CHUNK + 16, 11, 2),
    SlotFragment(3, 0, 3),
]
NUMEL = LAMB_CHUNK + 30
OWNED = torch.zeros(NUMEL, dtype=torch.bool)
for fragment in FRAGMENTS:
    OWNED[fragment.offset : fragment.offset + fragment.numel] = True
TOLERANCE = {torch.float16: 0, torch.bfloat16: 2**-7}
SCALES = torch.tensor([-1.0, 100.0, -0.25, 7.0], dtype=torch.float64)


def flats(generator, dtype=torch.float32):
    weights, gradient, m = (torch.randn(NUMEL, generator=generator) for _ in range(3))
    flats = [weights, gradient, m, torch.rand(NUMEL, generator=generator) ** 4]
    weights[8] = float("nan")  # ZeRO-3's padding is uninitialised memory
    return [flat.to(dtype) for flat in flats]


def run(flats, backend, *, coefficients=COEFFICIENTS, scales=SCALES, rounded=None):
    squares = torch.tensor([[0.0, 0.0, 3.0, 0.0], [0.0, 0.0, 5.0, 0.0]], dtype=torch.float64)
    passes = lamb_passes(backend, "cpu")
    passes.compute_update(*flats, coefficients=coefficients, fragments=FRAGMENTS, squares=squares)
    weights, update, m, v = flats
    passes.apply_update(weights, update, fragments=FRAGMENTS, scales=scales, rounded=rounded)
    return {"weights": weights, "update": update, "exp_avg": m, "exp_avg_sq": v}, squares


@pytest.mark.parametrize("measures_gradient", [True, *in_soak(False)])
def test_both_passes_match_the_reference(generator, measures_gradient):
    inputs = flats(generator)
    coefficients = dataclasses.replace(COEFFICIENTS, measures_gradient=measures_gradient)
    ours, squares = run([flat.clone() for flat in inputs], "triton", coefficients=coefficients)
    theirs, exact = run([flat.double() for flat in inputs], "torch", coefficients=coefficients)
    for name, flat in ours.items():
        error = (flat.double() - theirs[name])[OWNED].norm() / theirs[name][OWNED].norm()
        assert error < 1e-6, name
    torch.testing.assert_close(squares, exact, rtol=1e-6, atol=0)
    for before, flat in zip(inputs, ours.values(), strict=True):  # padding is left alone
        assert torch.equal(flat[~OWNED].nan_to_num(), before[~OWNED].nan_to_num())


@pytest.mark.parametrize("dtype", [torch.bfloat16, *in_soak(torch.float16)])
def test_second_pass_rounds_the_weights_and_leaves_padding_alone(dtype, generator):
    inputs = flats(generator)
    rounded = torch.full((NUMEL,), -7.0, dtype=dtype)
    ours, _ = run(inputs, "triton", rounded=rounded)
    # The interpreter cuts bfloat16 off where a GPU rounds it.
    torch.testing.assert_close(rounded[OWNED], ours["weights"][OWNED].to(dtype), rtol=TOLERANCE[dtype], atol=0)
    assert (rounded[~OWNED] == -7).all()


def test_a_factor_of_zero_changes_nothing(generator):
    inputs = flats(generator)
    inputs[1][:100:3] = float("nan")
    before = [flat.clone() for flat in inputs]
    nothing = dataclasses.replace(COEFFICIENTS, gradient_scale=torch.tensor(0.0, dtype=torch.float64))
    rounded = torch.full((NUMEL,), -7.0, dtype=torch.bfloat16)
    _, squares = run(inputs, "triton", coefficients=nothing, scales=torch.zeros_like(SCALES), rounded=rounded)
    assert all(torch.equal(a.nan_to_num(9), b.nan_to_num(9)) for a, b in zip(inputs, before, strict=True))
    assert (rounded == -7).all()
    assert squares.sum() == 8  # what was there


def test_a_flat_without_segments_is_left_alone():
    tensors = [torch.ones(4) for _ in range(4)]
    squares = torch.zeros(2, 1, dtype=torch.float64)
    passes = lamb_passes("triton", "cpu")
    passes.compute_update(*tensors, coefficients=COEFFICIENTS, fragments=[], squares=squares)
    assert all(torch.equal(tensor, torch.ones(4)) for tensor in tensors)
    assert not squares.any()


def test_float64_flats_are_refused():
    with pytest.raises(KernelError, match=r"float64.*Use ops\.lamb=torch"):
        run([torch.ones(NUMEL, dtype=torch.float64) for _ in range(4)], "triton")
