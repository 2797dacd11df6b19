"""Attention on a CPU against the float64 reference, with blocks of any size."""

import pytest
import torch

from megabert.ops.attention.dense.api import attention
from megabert.ops.attention.dense.cpu import DenseSequences
from megabert.ops.proof.problem import errors
from megabert.ops.proof.problems import attention_problem

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}
LENGTHS = {
    "one token": ([1], 0),
    "unequal, one twice": ([5, 17, 5, 1, 33], 0),
    "padded": ([9, 4, 0, 0], 6),
    "long": ([130, 128, 77], 3),
    "none": ([0, 0], 5),
}


@pytest.mark.parametrize("has_dropout", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("lengths", "padding"), LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize(("heads", "head_width"), [(1, 8), (3, 64)])
def test_attention_and_gradients_match_float64(lengths, padding, heads, head_width, dtype, has_dropout, generator):
    sizes = {"heads": heads, "head_width": head_width, "padding": padding, "dropout": 0.1 * has_dropout}
    problem = attention_problem(lengths, generator, **sizes)
    assert max(errors(problem, dtype, backend="torch").values()) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_bias_gets_the_gradient_that_a_dense_layer_would_give_it_bit_for_bit(dtype, generator, boundaries):
    qkv = torch.randn(20, 3 * 2 * 8, generator=generator).to(dtype)
    gradients = []
    for is_handed_on in (False, True):
        bias = torch.zeros(qkv.shape[1], dtype=dtype, requires_grad=True)
        sums = (qkv + (bias.detach() if is_handed_on else bias)).requires_grad_()
        bias_C = bias if is_handed_on else None
        out = attention(sums, DenseSequences(boundaries([5, 7]), 7), num_heads=2, bias_C=bias_C)
        out.square().sum().backward()
        gradients.append(bias.grad)
    assert torch.equal(*gradients)


def test_small_blocks_match_float64(generator, monkeypatch):
    monkeypatch.setattr("megabert.ops.attention.dense.cpu.BLOCK", 200)
    problem = attention_problem([6] * 9, generator, heads=2, head_width=4)
    assert max(errors(problem, torch.float64, backend="torch").values()) < TOLERANCE[torch.float64]
