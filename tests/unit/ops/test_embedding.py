"""``ops.dense.embedding``: the gradient that a GPU takes, run on a CPU, against torch's own."""

# T packed tokens, R rows of the table, E embedding width

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from unit.ops.test_dense import Sum

from megabert.ops.dense import FEW_ROWS, _Embedding, table_gradient


def gradient(table_RE: Tensor, ids_T: Tensor, grad_TE: Tensor, lookup) -> tuple[Tensor, Tensor | None]:
    leaf = table_RE.clone().requires_grad_()
    out = lookup(ids_T, leaf)
    out.backward(grad_TE)
    return out.detach(), leaf.grad


@pytest.mark.parametrize("rows", [1, 2, FEW_ROWS, FEW_ROWS + 1, 300])
def test_rows_and_their_gradient_are_those_of_torch(rows):
    generator = torch.Generator().manual_seed(rows)
    table_RE = torch.randn(rows, 24, generator=generator, dtype=torch.float64)
    ids_T = torch.randint(0, rows, (401,), generator=generator)
    grad_TE = torch.randn(401, 24, generator=generator, dtype=torch.float64)
    found = gradient(table_RE, ids_T, grad_TE, lambda ids, table: _Embedding.apply(ids, table, None))
    for value, expected in zip(found, gradient(table_RE, ids_T, grad_TE, functional.embedding), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)


def test_gradient_of_a_small_table_goes_to_its_sum():
    table_RE, ids_T, grad_TE = torch.randn(2, 8), torch.tensor([0, 1, 1, 0, 1]), torch.randn(5, 8)
    total = Sum(2, 8)
    _, rest = gradient(table_RE, ids_T, grad_TE, lambda ids, table: _Embedding.apply(ids, table, total))
    assert rest is None
    torch.testing.assert_close(total.total, gradient(table_RE, ids_T, grad_TE, functional.embedding)[1])


def test_frequent_rows_of_16_bits_are_summed_in_float32():
    ids_T = torch.zeros(3000, dtype=torch.int32)
    ids_T[7] = 2
    gradient_RE = table_gradient(torch.full((3000, 4), 0.01).bfloat16(), ids_T, 3)
    expected = torch.tensor([2999.0, 0.0, 1.0])[:, None] * torch.tensor(0.01).bfloat16().float()
    assert torch.equal(gradient_RE, expected.expand(3, 4).bfloat16())


@pytest.mark.parametrize("tokens", [0, 1, 70])
def test_rows_that_no_token_took_have_no_gradient(tokens):
    grad_TE, ids_T = torch.randn(tokens, 5), torch.full((tokens,), 30)
    gradient_RE = table_gradient(grad_TE, ids_T, 40)
    torch.testing.assert_close(gradient_RE[30], grad_TE.sum(0))
    assert not gradient_RE[:30].any()
    assert not gradient_RE[31:].any()
