"""GeGLU on a CPU: values and gradients against the float64 reference."""

import pytest
import torch

from megabert.ops.gated_gelu.api import gated_gelu
from megabert.ops.gated_gelu.reference import gated_gelu_reference
from megabert.ops.proof.problem import errors
from megabert.ops.proof.problems import gated_gelu_problem

# 16 bits round GELU's result before it is multiplied
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}


@pytest.mark.parametrize("approximate", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(1, 19), (7, 1023), (300, 512)])
def test_gated_gelu_and_gradients_match_float64_reference(shape, dtype, approximate, generator):
    problem = gated_gelu_problem(shape, generator, approximate=approximate)
    assert max(errors(problem, dtype, backend="torch").values()) < TOLERANCE[dtype]


@pytest.mark.parametrize("approximate", [False, True])
def test_gated_gelu_passes_gradcheck(approximate):
    x = torch.randn(3, 10, dtype=torch.float64, requires_grad=True)
    for op in (gated_gelu, gated_gelu_reference):
        assert torch.autograd.gradcheck(lambda x, op=op: op(x, approximate=approximate), [x])


def test_first_half_passes_gelu_and_second_half_multiplies():
    x = torch.tensor([[-1.0, 50.0, 3.0, -2.0]])
    y = gated_gelu(x)
    assert y.shape == (1, 2)
    assert y[0, 1] == -100.0
    assert y[0, 0] == pytest.approx(3 * -0.15865525)
