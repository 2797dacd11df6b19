"""LayerNorm with bias, dropout and residual on a CPU: values and gradients against the float64 reference."""

import pytest
import torch

from megabert.ops.layer_norm.api import layer_norm
from megabert.ops.layer_norm.reference import layer_norm_reference
from megabert.ops.proof.problem import errors, relative_error
from megabert.ops.proof.problems import add_layer_norm_problem

EPS = 1e-12
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}
SHAPES = [(1, 1), (1, 7), (13, 128), (5, 1023), (300, 768)]


def run(op, tensors, options, grad):
    """Output and the gradient of every tensor given."""
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()}
    x, weight, bias = (leaves[name] for name in ("x", "weight", "bias"))
    rest = {name: leaf for name, leaf in leaves.items() if name not in ("x", "weight", "bias")}
    out = op(x, weight, bias, eps=EPS, **rest, **options)
    out.backward(grad.to(out.dtype))
    return {"out": out.detach()} | {name: leaf.grad for name, leaf in leaves.items()}


def one_of(op):
    """Return an op without its second result."""
    return lambda *inputs, **options: op(*inputs, **options)[0]


@pytest.mark.parametrize("extras", ["plain", "residual", "full"])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES)
def test_layer_norm_and_gradients_match_float64_reference(shape, dtype, extras, generator, make_site):
    rows, width = shape
    tensors = {name: torch.randn(width, generator=generator) for name in ("weight", "bias")}
    tensors["x"] = torch.randn(shape, generator=generator)
    if extras != "plain":
        tensors["residual_TD"] = torch.randn(shape, generator=generator)
    if extras == "full":
        tensors["input_bias_D"] = torch.randn(width, generator=generator)
    options = {"dropout": make_site(rows)} if extras == "full" else {}
    grad = torch.randn(shape, generator=generator).to(dtype)
    tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    ours = run(one_of(layer_norm), tensors, options, grad)
    theirs = run(one_of(layer_norm_reference), {n: t.double() for n, t in tensors.items()}, options, grad)
    for name, value in ours.items():
        assert value.dtype == dtype
        if width > 1 or name in ("out", "bias"):  # of one column the other gradients are rounding around zero
            assert relative_error(value, theirs[name]) < TOLERANCE[dtype], name


def test_layer_norm_reference_passes_gradcheck(make_site):
    site = make_site(4, probability=0.3)
    tensors = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((4, 6), 6, 6, 6, (4, 6))]
    for op in map(one_of, (layer_norm, layer_norm_reference)):
        assert torch.autograd.gradcheck(
            lambda x, w, b, i, r, op=op: op(x, w, b, eps=1e-5, input_bias_D=i, residual_TD=r, dropout=site), tensors
        )


@pytest.mark.parametrize("used", [(True, False), (False, True), (True, True)])
def test_both_uses_of_a_result_add_their_gradients(used, generator, make_site):
    shape = (13, 24)
    columns = [torch.randn(24, generator=generator, dtype=torch.float64) for _ in range(3)]
    rows = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2)]
    grads = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2)]
    found = []
    for op in (layer_norm, layer_norm_reference):
        weight, bias, input_bias, x, residual = leaves = [leaf.clone().requires_grad_() for leaf in columns + rows]
        twice = op(x, weight, bias, eps=EPS, input_bias_D=input_bias, residual_TD=residual, dropout=make_site(13))
        assert torch.equal(*twice)
        sum((y * grad).sum() for y, grad, is_used in zip(twice, grads, used, strict=True) if is_used).backward()
        found.append([leaf.grad for leaf in leaves])
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("extras", [(), ("sum",), ("bias", "dropout", "sum")], ids="+".join)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES[1:])
def test_add_layer_norm_and_gradients_match_float64_reference(shape, dtype, extras, generator):
    problem = add_layer_norm_problem(shape, generator, extras=extras)
    assert max(errors(problem, dtype, backend="torch").values()) < TOLERANCE[dtype]


def test_layer_norm_of_no_rows_gives_zero_gradients():
    weight, bias = torch.ones(4, requires_grad=True), torch.zeros(4, requires_grad=True)
    layer_norm(torch.empty(0, 4, requires_grad=True), weight, bias, eps=EPS)[0].sum().backward()
    assert torch.equal(weight.grad, torch.zeros(4))
    assert torch.equal(bias.grad, torch.zeros(4))
