"""``embedding``: rows of a table, with a gradient whose sums have a fixed order.

On a GPU torch's own gradient may differ from run to run. It has two kernels, and both have a fault. The kernel for up
to 3,072 tokens does not look at ``torch.use_deterministic_algorithms``, has a race of shared memory above 1,024 tokens
(pytorch/pytorch#187687) and adds frequent words up in 16 bits; the other makes atomic additions if few rows occur
(pytorch/pytorch#172454). So on a GPU the gradient is ours.

- The gradient of a table of a few rows is a matrix product with one-hot tokens. Products repeat, and a product that is
  given a float32 sum (``dense.sum_products_in``) adds to it.
- Any other table gets ``table_gradient``: ids sorted, then the tokens of each row summed in float32, in their order.
"""

# T packed tokens, R rows of the table, E embedding width

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from megabert.ops.backend import has_triton
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
            return None, table_gradient(grad_TE, ids_T, ctx.rows), None
        row_R1 = torch.arange(ctx.rows, device=ids_T.device)[:, None]
        one_hot_RT = (row_R1 == ids_T).to(grad_TE.dtype)
        if ctx.gradient_sum is None:
            return None, one_hot_RT @ grad_TE, None
        ctx.gradient_sum.add_product(one_hot_RT, grad_TE)
        return None, None, None


def table_gradient(grad_TE: Tensor, ids_T: Tensor, rows: int) -> Tensor:
    """Return, for each row of a table, the sum of the gradients of the tokens that took it, of shape (R, E).

    Sums are taken in float32 (float64 of float64) in the order of the tokens, on any device, and rounded once.

    Args:
        grad_TE: Gradients of the looked-up rows.
        ids_T: The row of each token, int64 or int32, each below ``rows``.
        rows: Rows of the table.
    """
    sorted_T, order_T = torch.sort(ids_T.long(), stable=True)
    first_R = torch.searchsorted(sorted_T, torch.arange(rows + 1, device=ids_T.device))
    if grad_TE.device.type == "cuda" and has_triton():
        from megabert.ops.triton_support.table_gradients import table_gradient_triton

        return table_gradient_triton(grad_TE, order_T, first_R)
    wide_TE = grad_TE if grad_TE.dtype == torch.float64 else grad_TE.float()
    sums_RE = torch.segment_reduce(wide_TE[order_T], "sum", offsets=first_R, axis=0, initial=0)
    return sums_RE.to(grad_TE.dtype)
