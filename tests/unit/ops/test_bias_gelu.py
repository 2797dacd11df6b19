"""GELU with bias on a CPU: values and gradients against the float64 reference."""

import pytest
import torch

from megabert.ops.bias_gelu.api import bias_gelu
from megabert.ops.bias_gelu.reference import bias_gelu_reference
from megabert.ops.proof.problem import relative_error

# bfloat16 rounds x + bias to 8 significant bits before the activation
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}


@pytest.mark.parametrize("approximate", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(1, 19), (7, 1023), (300, 512)])
def test_bias_gelu_and_gradients_match_float64_reference(shape, dtype, approximate, generator):
    x = (3 * torch.randn(shape, generator=generator)).to(dtype).requires_grad_()
    bias = torch.randn(shape[1], generator=generator).to(dtype).requires_grad_()
    grad = torch.randn(shape, generator=generator).to(dtype)
    x64, bias64 = (tensor.detach().double().requires_grad_() for tensor in (x, bias))
    expected = bias_gelu_reference(x64, bias64, approximate=approximate)
    expected.backward(grad.double())
    out = bias_gelu(x, bias, approximate=approximate)
    out.backward(grad)
    assert out.dtype == dtype
    for value, reference in ((out, expected), (x.grad, x64.grad), (bias.grad, bias64.grad)):
        assert relative_error(value.detach(), reference.detach()) < TOLERANCE[dtype]


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
