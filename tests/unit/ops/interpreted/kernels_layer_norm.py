"""LayerNorm kernels in the interpreter: values, gradients and masks with each of the optional inputs."""

import itertools

import pytest
import torch
from support.soak import in_soak

from megabert.ops.layer_norm.cpu import layer_norm_torch
from megabert.ops.layer_norm.triton import layer_norm_triton
from megabert.ops.proof.problems import add_layer_norm_problem, layer_norm_problem

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
EXTRAS = [
    (),
    ("unshifted",),
    ("residual",),
    ("bias", "residual"),
    ("bias", "dropout"),
    ("bias", "dropout", "residual", "twice"),
]


ODD, EVEN, SMALL = (5, 1023), (37, 128), (3, 5)


@pytest.mark.parametrize(
    ("shape", "extras", "dtype"),
    [
        *((SMALL, extras, torch.float32) for extras in EXTRAS),
        *((shape, EXTRAS[-1], dtype) for shape in (ODD, EVEN) for dtype in DTYPES[1:]),
        *in_soak(*itertools.product((ODD, EVEN, SMALL), EXTRAS, DTYPES)),
    ],
    ids=str,
)
def test_layer_norm_matches_reference(shape, extras, dtype, generator, assert_close):
    assert_close(layer_norm_problem(shape, generator, extras=extras), dtype)


SUMS = [(), ("sum",), ("dropout", "sum"), ("bias", "dropout", "sum")]


@pytest.mark.parametrize(
    ("shape", "extras", "dtype"),
    [
        *(((6, 21), extras, torch.float32) for extras in SUMS),
        *((ODD, SUMS[-1], dtype) for dtype in DTYPES[1:]),
        *in_soak(*itertools.product((ODD, EVEN, (6, 21)), SUMS, DTYPES)),
    ],
    ids=str,
)
def test_add_layer_norm_matches_reference(shape, extras, dtype, generator, assert_close):
    assert_close(add_layer_norm_problem(shape, generator, extras=extras), dtype)


@pytest.mark.parametrize("used", [0, 1])
def test_add_layer_norm_differentiates_the_result_or_the_sum_alone(used, generator):
    tensors = add_layer_norm_problem((7, 24), generator).tensors
    gradients = []
    for op in (layer_norm_triton, layer_norm_torch):
        x, weight, residual = (tensors[name].clone().requires_grad_() for name in ("x_TD", "weight_D", "residual_TD"))
        op(x, weight, None, None, residual, 1e-5, None, True)[used].square().sum().backward()
        gradients.append([x.grad, residual.grad, torch.zeros(24) if weight.grad is None else weight.grad])
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 1), (1, 768), (700, 8)])
def test_layer_norm_of_edge_shapes_matches_reference(shape, generator, assert_close):
    # of one column every gradient but the shift's is rounding around zero
    ignore = ("x_TD", "weight_D", "input_bias_D", "residual_TD") if shape[1] == 1 else ()
    assert_close(layer_norm_problem(shape, generator), torch.float32, ignore=ignore)


def test_layer_norm_of_no_tokens_gives_zero_gradients():
    weight, bias = torch.ones(4, requires_grad=True), torch.zeros(4, requires_grad=True)
    y, _ = layer_norm_triton(torch.empty(0, 4, requires_grad=True), weight, bias, None, None, 1e-12, None, False)
    y.sum().backward()
    assert torch.equal(weight.grad, torch.zeros(4))
    assert torch.equal(bias.grad, torch.zeros(4))
