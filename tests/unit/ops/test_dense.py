"""Dense layers whose backward product adds to a float32 sum, against torch's own."""

import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from megabert.ops.dense import add_product_, dense, sum_products_in

TOKENS, INPUTS, OUTPUTS = 37, 24, 19


class Sum:
    """Adds products up as a bucket does."""

    def __init__(self, *shape, dtype=torch.float32):
        self.total, self.products = torch.full(shape, torch.nan, dtype=dtype), 0

    def __call__(self, left_OT, right_TI):
        add_product_(self.total, left_OT, right_TI, is_first=self.products == 0)
        self.products += 1


def problem(generator, dtype):
    x, weight, bias, grad = (
        torch.randn(*shape, generator=generator).to(dtype)
        for shape in ((TOKENS, INPUTS), (OUTPUTS, INPUTS), (OUTPUTS,), (TOKENS, OUTPUTS))
    )
    return x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_(), grad


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_one_micro_step_equals_linear_bit_for_bit(dtype, has_bias, generator):
    x, weight, bias, grad = problem(generator, dtype)
    inputs = (x, weight, bias) if has_bias else (x, weight)
    expected = functional.linear(*inputs)
    expected.backward(grad)
    gradients = [tensor.grad.clone() for tensor in inputs]
    x.grad = weight.grad = bias.grad = None
    kept = Sum(OUTPUTS, INPUTS)
    sum_products_in(weight, kept)
    out = dense(*inputs)
    out.backward(grad)
    assert torch.equal(out, expected)
    assert weight.grad is None
    assert torch.equal(kept.total, gradients[1].float())
    assert torch.equal(x.grad, gradients[0])
    assert not has_bias or torch.equal(bias.grad, gradients[2])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_sums_over_micro_steps_and_over_uses_are_those_of_float64(dtype, tolerance, generator):
    x, weight, _, grad = problem(generator, dtype)
    kept, expected = Sum(OUTPUTS, INPUTS), torch.zeros(OUTPUTS, INPUTS, dtype=torch.float64)
    sum_products_in(weight, kept)
    for step in range(5):
        # Twice in one graph, as ALBERT's layers are.
        ((dense(x, weight) + dense(x * 2, weight)) * (step + 1)).backward(grad)
        expected += (step + 1) * 3 * grad.double().t() @ x.detach().double()
    assert kept.products == 10
    assert (kept.total - expected).norm() / expected.norm() < tolerance


def test_gradients_pass_gradcheck(generator):
    x, weight, bias, _ = problem(generator, torch.float64)
    sum_products_in(weight, Sum(OUTPUTS, INPUTS, dtype=torch.float64))
    assert torch.autograd.gradcheck(lambda x, bias: dense(x, weight, bias), (x, bias))


USES = {
    "recomputed": (lambda x, weight: checkpoint(lambda x: dense(x, weight).tanh(), x, use_reentrant=False), 1),
    "no gradient of the input": (lambda x, weight: dense(x.detach(), weight), 1),
    "a frozen weight": (lambda x, weight: dense(x, weight.requires_grad_(False)), 0),
}


@pytest.mark.parametrize(("use", "products"), USES.values(), ids=USES)
def test_a_layer_adds_once_and_a_frozen_one_never(use, products, generator):
    x, weight, _, grad = problem(generator, torch.float32)
    kept = Sum(OUTPUTS, INPUTS)
    sum_products_in(weight, kept)
    use(x, weight).backward(grad)
    assert kept.products == products
