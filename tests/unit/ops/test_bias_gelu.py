"""GELU with bias on a CPU: values and gradients against the float64 reference."""

import pytest
import torch

from megabert.ops.bias_gelu.api import bias_gelu
from megabert.ops.bias_gelu.reference import bias_gelu_reference
from megabert.ops.proof.problem import errors
from megabert.ops.proof.problems import bias_gelu_problem

# bfloat16 rounds x + bias to 8 significant bits before the activation
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}


@pytest.mark.parametrize("approximate", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(1, 19), (7, 1023), (300, 512)])
def test_bias_gelu_and_gradients_match_float64_reference(shape, dtype, approximate, generator):
    problem = bias_gelu_problem(shape, generator, approximate=approximate)
    assert max(errors(problem, dtype, backend="torch").values()) < TOLERANCE[dtype]


@pytest.mark.parametrize("approximate", [False, True])
def test_bias_gelu_passes_gradcheck(approximate):
    tensors = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 5), 5)]
    for op in (bias_gelu, bias_gelu_reference):
        assert torch.autograd.gradcheck(lambda x, b, op=op: op(x, b, approximate=approximate), tensors)


def test_bias_gelu_leaves_its_input_alone():
    x = torch.randn(4, 4)
    before = x.clone()
    bias_gelu(x, torch.ones(4))
    assert torch.equal(x, before)
