"""The gradient of a table in the interpreter: torch's form of the same sums, whatever the order of ids."""

import pytest
import torch
from support.soak import in_soak

from megabert.ops.dense import table_gradient
from megabert.ops.triton_support.table_gradients import table_gradient_triton

TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}  # one rounding of a float32 sum


def in_order(ids_T, rows):
    sorted_T, order_T = torch.sort(ids_T, stable=True)
    return order_T, torch.searchsorted(sorted_T, torch.arange(rows + 1))


SHAPES = ((0, 17, 8), (1, 17, 1), (200, 17, 130), (97, 60, 24))


@pytest.mark.parametrize(
    ("tokens", "rows", "width", "dtype"),
    [
        *((*shape, dtype) for shape, dtype in zip(SHAPES, (*TOLERANCE, torch.float32), strict=True)),
        *in_soak(*((*shape, dtype) for shape in SHAPES for dtype in TOLERANCE)),
    ],
)
def test_sums_of_a_row_equal_torchs(tokens, rows, width, dtype):
    ids_T = torch.randint(0, rows, (tokens,))
    ids_T[: tokens // 2] = rows - 1  # a frequent word
    grad_TE = torch.randn(tokens, width).to(dtype)
    ours = table_gradient_triton(grad_TE, *in_order(ids_T, rows))
    torch.testing.assert_close(ours, table_gradient(grad_TE, ids_T, rows), rtol=TOLERANCE[dtype], atol=1e-5)


def test_sums_do_not_depend_on_other_rows():
    ids_T, grad_TE = torch.randint(0, 20, (150,)), torch.randn(150, 16)
    first = table_gradient_triton(grad_TE, *in_order(ids_T, 20))
    ids_T[ids_T > 9] = 19
    assert torch.equal(first[:10], table_gradient_triton(grad_TE, *in_order(ids_T, 20))[:10])
