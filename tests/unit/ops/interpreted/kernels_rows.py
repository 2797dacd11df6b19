"""Kernels of single rows in the interpreter: dropout keys and masks, gradients of tables, cross-entropy."""

import pytest
import torch
from support.soak import in_soak

from megabert.ops.cross_entropy.api import cross_entropy
from megabert.ops.dense import table_gradient_torch
from megabert.ops.dropout import Dropout, dropped_torch, row_keys_torch
from megabert.ops.proof.problems import cross_entropy_problem
from megabert.ops.triton_support.dropout_kernels import dropped_triton, row_keys_triton
from megabert.ops.triton_support.table_gradients import table_gradient_triton

TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}  # one rounding of a float32 sum


def each_shape(shapes):
    """Return each shape with a dtype, and with all of them in ``make soak``."""
    quick = zip(shapes, (*TOLERANCE, torch.float32), strict=True)
    return [*quick, *in_soak(*((shape, dtype) for shape in shapes for dtype in TOLERANCE))]


@pytest.mark.parametrize("tokens", [0, 1, 1500])
def test_row_keys_equal_torchs(tokens):
    seeds, constant = torch.randint(-(2**31), 2**31, (tokens,)).int(), -123_456_789
    assert torch.equal(row_keys_triton(seeds, constant), row_keys_torch(seeds, constant))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(1, 1), (19, 301), (0, 8)])
def test_dropout_equals_torchs(shape, dtype):
    site = Dropout(0.3, torch.randint(-(2**31), 2**31, shape[:1]).int())
    x = torch.randn(shape).to(dtype)
    ours, theirs = dropped_triton(x, site), dropped_torch(x, site)
    assert torch.equal(ours == 0, theirs == 0)
    torch.testing.assert_close(ours, theirs)


def in_order(ids_T, rows):
    sorted_T, order_T = torch.sort(ids_T, stable=True)
    return order_T, torch.searchsorted(sorted_T, torch.arange(rows + 1))


@pytest.mark.parametrize(("shape", "dtype"), each_shape([(0, 17, 8), (1, 17, 1), (200, 17, 130), (97, 60, 24)]))
def test_sums_of_a_row_equal_torchs(shape, dtype):
    tokens, rows, width = shape
    ids_T = torch.randint(0, rows, (tokens,))
    ids_T[: tokens // 2] = rows - 1  # a frequent word
    grad_TE = torch.randn(tokens, width).to(dtype)
    ours, theirs = (run(grad_TE, *in_order(ids_T, rows)) for run in (table_gradient_triton, table_gradient_torch))
    torch.testing.assert_close(ours, theirs, rtol=TOLERANCE[dtype], atol=1e-5)


def test_sums_do_not_depend_on_other_rows():
    ids_T, grad_TE = torch.randint(0, 20, (150,)), torch.randn(150, 16)
    first = table_gradient_triton(grad_TE, *in_order(ids_T, 20))
    ids_T[ids_T > 9] = 19
    assert torch.equal(first[:10], table_gradient_triton(grad_TE, *in_order(ids_T, 20))[:10])


# Few rows would do for an odd shape, but the loss of one sure row is the difference of nearly equal numbers.
CLASSES = ((41, 2, 2), (13, 320, 305), (12, 4161, 4099), (4, 8200, 8200))


@pytest.mark.parametrize(("shape", "dtype"), each_shape(CLASSES))
def test_cross_entropy_matches_reference(shape, dtype, generator, assert_close):
    assert_close(cross_entropy_problem(shape[:2], generator, classes=shape[2]), dtype)


def test_cross_entropy_of_nothing_counted_is_zero_with_zero_gradient():
    for rows in (0, 3):
        logits = torch.randn(rows, 9, requires_grad=True)
        loss, correct = cross_entropy(logits, torch.full((rows,), -100), backend="triton")
        loss.backward()
        assert (loss.item(), correct.item()) == (0.0, 0)
        assert torch.equal(logits.grad, torch.zeros(rows, 9))
