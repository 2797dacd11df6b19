"""``embedding``: rows of a table, with a gradient whose sums have a fixed order.

A torch of 2026 (pytorch/pytorch#172454) adds up the gradient of a table of which few rows occur with atomic additions
on a GPU, so it may differ from run to run: of segments, of which there are two, and of every small vocabulary. It is
the likely cause of two runs of ours on an H100 that parted after 23 equal steps; no card has confirmed it yet.

- The gradient of a table of a few rows is a matrix product with one-hot tokens. Products repeat, and one that is given
  a float32 sum (``dense.sum_products_in``) adds to it.
- Any other table takes torch's way for `torch.use_deterministic_algorithms`: sorted ids, sums in that order.
"""

# T packed tokens, R rows of the table, E embedding width

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from megabert.ops.dense import ProductSum, gradient_sum_of

FEW_ROWS = 16
"""Rows up to which a gradient is a product, which reads the tokens' gradients once."""


def embedding(ids_T: Tensor, table_RE: Tensor) -> Tensor:
    """Return the rows of a table, of shape (T, E).

    Args:
        ids_T: Number of a row for each token, int64 or int32.
        table_RE: The table, of any floating dtype.
    """
    # On a CPU torch's own gradient repeats.
    if ids_T.device.type != "cuda":
        return functional.embedding(ids_T, table_RE)
    return _Embedding.apply(ids_T, table_RE, gradient_sum_of(table_RE))


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids_T: Tensor, table_RE: Tensor, gradient_sum: ProductSum | None) -> Tensor:
        ctx.save_for_backward(ids_T)
        ctx.rows, ctx.gradient_sum = len(table_RE), gradient_sum
        return functional.embedding(ids_T, table_RE)

    @staticmethod
    def backward(ctx: Any, grad_TE: Tensor) -> tuple[None, Tensor | None, None]:
        (ids_T,) = ctx.saved_tensors
        if ctx.rows > FEW_ROWS:
            with deterministic_algorithms():
                return None, torch.ops.aten.embedding_dense_backward(grad_TE, ids_T, ctx.rows, -1, False), None
        row_R1 = torch.arange(ctx.rows, device=ids_T.device)[:, None]
        one_hot_RT = (row_R1 == ids_T).to(grad_TE.dtype)
        if ctx.gradient_sum is None:
            return None, one_hot_RT @ grad_TE, None
        ctx.gradient_sum.add_product(one_hot_RT, grad_TE)
        return None, None, None


@contextlib.contextmanager
def deterministic_algorithms() -> Iterator[None]:
    """Let torch take algorithms that repeat, without filling the memory that they allocate.

    ``torch.use_deterministic_algorithms`` would import torch's compiler as well, which takes seconds.
    """
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    only_warned = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch._C._set_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(was_deterministic, warn_only=only_warned)
        torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
