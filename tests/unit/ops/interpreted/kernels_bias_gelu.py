"""GELU and GeGLU kernels in the interpreter: values, gradients, the tails, strided input and no tokens at all."""

import pytest
import torch
from support.soak import in_soak

from megabert.foundation.errors import KernelError
from megabert.ops.bias_gelu.triton import bias_gelu_triton
from megabert.ops.gated_gelu.triton import gated_gelu_triton
from megabert.ops.proof.problems import bias_gelu_problem, gated_gelu_problem

FORMS = pytest.mark.parametrize("approximate", [False, True], ids=["erf", "tanh"])


@pytest.mark.parametrize("problem_of", [bias_gelu_problem, gated_gelu_problem])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, *in_soak(torch.float16)])
@FORMS
@pytest.mark.parametrize("shape", [(7, 1023), *in_soak(((1, 19),), ((75, 96),))])
def test_gelu_matches_reference(shape, approximate, dtype, problem_of, generator, assert_close):
    assert_close(problem_of(shape, generator, approximate=approximate), dtype)


@FORMS
def test_bias_gelu_far_from_zero_is_the_identity_or_zero(approximate):
    x = torch.tensor([[-1e4, -50.0, 50.0, 1e4]], requires_grad=True)
    y = bias_gelu_triton(x, torch.zeros(4), approximate=approximate)
    y.sum().backward()
    assert torch.equal(y.detach(), torch.tensor([[0.0, 0.0, 50.0, 1e4]]))
    assert torch.equal(x.grad, torch.tensor([[0.0, 0.0, 1.0, 1.0]]))


def test_gated_gelu_of_a_transposed_tensor_is_that_of_its_copy(generator):
    x = torch.randn(8, 5, generator=generator).T
    assert torch.equal(gated_gelu_triton(x, approximate=False), gated_gelu_triton(x.contiguous(), approximate=False))


def test_gelu_of_no_tokens_gives_empty_results_and_zero_gradients():
    bias, x = torch.zeros(4, requires_grad=True), torch.empty(0, 8, requires_grad=True)
    bias_gelu_triton(torch.empty(0, 4), bias, approximate=False).sum().backward()
    assert torch.equal(bias.grad, torch.zeros(4))
    gated_gelu_triton(x, approximate=False).sum().backward()
    assert x.grad.shape == (0, 8)


def test_float64_is_refused_with_the_remedy():
    for op, more in ((bias_gelu_triton, [torch.zeros(4)]), (gated_gelu_triton, [])):
        with pytest.raises(KernelError, match=r"float64.*Use ops\.bias_gelu=torch"):
            op(torch.ones(2, 4, dtype=torch.float64), *more, approximate=False)


def test_erf_form_is_accurate_in_the_tail():
    h = torch.linspace(-12, 12, 4001)[None]
    y = bias_gelu_triton(h, torch.zeros(4001), approximate=False)
    exact = 0.5 * h.double() * torch.erfc(-h.double() / 2**0.5)
    assert ((y.double() - exact).abs() <= 2e-5 * exact.abs() + 1e-37).all()
