"""GeGLU kernels in the interpreter: values, gradients, strided input and no tokens at all."""

import pytest
import torch
from support.soak import in_soak

from megabert.foundation.errors import KernelError
from megabert.ops.gated_gelu.triton import gated_gelu_triton
from megabert.ops.proof.problems import gated_gelu_problem


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, *in_soak(torch.float16)])
@pytest.mark.parametrize("approximate", [False, True], ids=["erf", "tanh"])
@pytest.mark.parametrize("shape", [(1, 19), (7, 1023), *in_soak(((75, 96),))])
def test_gated_gelu_matches_reference(shape, approximate, dtype, generator, assert_close):
    assert_close(gated_gelu_problem(shape, generator, approximate=approximate), dtype)


def test_gated_gelu_of_a_transposed_tensor_is_that_of_its_copy(generator):
    x = torch.randn(8, 5, generator=generator).T
    assert torch.equal(gated_gelu_triton(x, approximate=False), gated_gelu_triton(x.contiguous(), approximate=False))


def test_gated_gelu_of_no_tokens_is_empty():
    x = torch.empty(0, 8, requires_grad=True)
    y = gated_gelu_triton(x, approximate=False)
    y.sum().backward()
    assert y.shape == (0, 4)
    assert x.grad.shape == (0, 8)


def test_float64_is_refused_with_the_remedy():
    with pytest.raises(KernelError, match=r"float64.*Use ops\.bias_gelu=torch"):
        gated_gelu_triton(torch.ones(2, 4, dtype=torch.float64), approximate=False)
