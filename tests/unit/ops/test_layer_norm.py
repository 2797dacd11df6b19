"""LayerNorm with bias, dropout and residual on a CPU: values and gradients against the float64 reference."""

import pytest
import torch

from megabert.ops.layer_norm.api import layer_norm
from megabert.ops.proof.problem import errors
from megabert.ops.proof.problems import add_layer_norm_problem, layer_norm_problem

EPS = 1e-12
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}
SHAPES = [(1, 1), (1, 7), (13, 128), (5, 1023), (300, 768)]


@pytest.mark.parametrize("extras", [(), ("residual",), ("bias", "dropout", "residual")], ids="+".join)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES)
def test_layer_norm_and_gradients_match_float64_reference(shape, dtype, extras, generator):
    measured = errors(layer_norm_problem(shape, generator, extras=extras), dtype, backend="torch")
    if shape[1] == 1:  # of one column the other gradients are rounding around zero
        measured = {name: measured[name] for name in ("out", "bias_D")}
    assert max(measured.values()) < TOLERANCE[dtype]


@pytest.mark.parametrize("extras", [(), ("sum",), ("bias", "dropout", "sum")], ids="+".join)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES[1:])
def test_add_layer_norm_and_gradients_match_float64_reference(shape, dtype, extras, generator):
    problem = add_layer_norm_problem(shape, generator, extras=extras)
    assert max(errors(problem, dtype, backend="torch").values()) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_results_have_the_dtype_of_the_input(dtype):
    x, row = torch.randn(3, 4).to(dtype), torch.ones(4, dtype=dtype)
    assert [y.dtype for y in layer_norm(x, row, row, eps=EPS)] == [dtype, dtype]


def test_layer_norm_of_no_rows_gives_zero_gradients():
    weight, bias = torch.ones(4, requires_grad=True), torch.zeros(4, requires_grad=True)
    layer_norm(torch.empty(0, 4, requires_grad=True), weight, bias, eps=EPS)[0].sum().backward()
    assert torch.equal(weight.grad, torch.zeros(4))
    assert torch.equal(bias.grad, torch.zeros(4))
