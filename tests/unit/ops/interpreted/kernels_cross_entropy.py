"""Cross-entropy kernels in the interpreter: loss, gradient, right answers, rows that do not count."""

import pytest
import torch
from support.soak import in_soak

from megabert.ops.cross_entropy.api import cross_entropy
from megabert.ops.proof.problems import cross_entropy_problem

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# few rows would do for an odd shape, but the loss of one sure row is the difference of nearly equal numbers
SHAPES = (((40, 2), 2), ((12, 320), 305), ((11, 4161), 4099), ((3, 8200), 8200))


@pytest.mark.parametrize(
    ("shape", "classes", "dtype"),
    [
        *((*shape, dtype) for shape, dtype in zip(SHAPES, (*DTYPES, torch.float32), strict=True)),
        *in_soak(*((*shape, dtype) for shape in SHAPES for dtype in DTYPES)),
    ],
)
def test_cross_entropy_matches_reference(shape, classes, dtype, generator, assert_close):
    problem = cross_entropy_problem((shape[0] + 1, shape[1]), generator, classes=classes)
    assert_close(problem, dtype)


def test_cross_entropy_of_nothing_counted_is_zero_with_zero_gradient():
    for rows in (0, 3):
        logits = torch.randn(rows, 9, requires_grad=True)
        loss, correct = cross_entropy(logits, torch.full((rows,), -100), backend="triton")
        loss.backward()
        assert (loss.item(), correct.item()) == (0.0, 0)
        assert torch.equal(logits.grad, torch.zeros(rows, 9))
