"""GELU with bias and GeGLU on a CPU: values and gradients against the float64 reference."""

import pytest
import torch

from megabert.ops.bias_gelu.api import bias_gelu
from megabert.ops.gated_gelu.api import gated_gelu
from megabert.ops.proof.problem import errors
from megabert.ops.proof.problems import bias_gelu_problem, gated_gelu_problem

# bfloat16 rounds x + bias to 8 significant bits before the activation, and GeGLU's activation before it multiplies
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}


@pytest.mark.parametrize("problem_of", [bias_gelu_problem, gated_gelu_problem])
@pytest.mark.parametrize("approximate", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(1, 19), (7, 1023), (300, 512)])
def test_gelu_and_gradients_match_float64_reference(shape, dtype, approximate, problem_of, generator):
    problem = problem_of(shape, generator, approximate=approximate)
    assert max(errors(problem, dtype, backend="torch").values()) < TOLERANCE[dtype]


def test_bias_gelu_leaves_its_input_alone():
    x = torch.randn(4, 4)
    before = x.clone()
    bias_gelu(x, torch.ones(4))
    assert torch.equal(x, before)


def test_first_half_passes_gelu_and_second_half_multiplies():
    y = gated_gelu(torch.tensor([[-1.0, 50.0, 3.0, -2.0]]))
    assert y.tolist() == [[pytest.approx(3 * -0.15865525), -100.0]]
