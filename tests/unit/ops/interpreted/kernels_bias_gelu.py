"""GELU kernels in the interpreter: values, gradients, the tails and no tokens at all."""

import pytest
import torch
from support.soak import in_soak

from megabert.foundation.errors import KernelError
from megabert.ops.bias_gelu.triton import bias_gelu_triton
from megabert.ops.proof.problems import bias_gelu_problem


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, *in_soak(torch.float16)])
@pytest.mark.parametrize("approximate", [False, True], ids=["erf", "tanh"])
@pytest.mark.parametrize("shape", [(1, 19), (7, 1023), *in_soak(((75, 96),))])
def test_bias_gelu_matches_reference(shape, approximate, dtype, generator, assert_close):
    assert_close(bias_gelu_problem(shape, generator, approximate=approximate), dtype)


@pytest.mark.parametrize("approximate", [False, True], ids=["erf", "tanh"])
def test_bias_gelu_far_from_zero_is_the_identity_or_zero(approximate):
    x = torch.tensor([[-1e4, -50.0, 50.0, 1e4]], requires_grad=True)
    y = bias_gelu_triton(x, torch.zeros(4), approximate=approximate)
    y.sum().backward()
    assert torch.equal(y.detach(), torch.tensor([[0.0, 0.0, 50.0, 1e4]]))
    assert torch.equal(x.grad, torch.tensor([[0.0, 0.0, 1.0, 1.0]]))


def test_bias_gelu_of_no_tokens_gives_zero_gradients():
    bias = torch.zeros(4, requires_grad=True)
    bias_gelu_triton(torch.empty(0, 4), bias, approximate=False).sum().backward()
    assert torch.equal(bias.grad, torch.zeros(4))


def test_float64_is_refused_with_the_remedy():
    with pytest.raises(KernelError, match=r"float64.*Use ops\.bias_gelu=torch"):
        bias_gelu_triton(torch.ones(2, 4, dtype=torch.float64), torch.zeros(4), approximate=False)


def test_erf_form_is_accurate_in_the_tail():
    h = torch.linspace(-12, 12, 4001)[None]
    y = bias_gelu_triton(h, torch.zeros(4001), approximate=False)
    exact = 0.5 * h.double() * torch.erfc(-h.double() / 2**0.5)
    assert ((y.double() - exact).abs() <= 2e-5 * exact.abs() + 1e-37).all()
