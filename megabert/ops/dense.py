"""``dense``: a matrix product whose backward pass may add the weight's gradient to a float32 sum by itself.

Autograd hands over a weight's gradient in the weight's precision. To accumulate it in float32, one then reads
it, reads the sum and writes the sum: 10 bytes per element after the product's 2. A product that begins from the sum
reads 4 and writes 4, and rounds nothing to 16 bits in between.

A weight that was given a sum (``sum_products_in``) gets no gradient from autograd, whose node for the weight is run
all the same, once per backward pass, after all of the weight's uses. A weight without one is torch's own ``linear``:
the reference, and what runs wherever gradients are not accumulated in float32. With ``in_fp8`` the output and the
gradient of the input are products in 8 bits (``ops.fp8``); the weight's gradient never is.

``embedding``: rows of a table, with a gradient whose sums have a fixed order.

On a GPU torch's own gradient may differ from run to run. It has two kernels, and both have a fault. The kernel for up
to 3,072 tokens does not look at ``torch.use_deterministic_algorithms``, has a race of shared memory above 1,024 tokens
(pytorch/pytorch#187687) and adds frequent words up in 16 bits; the other makes atomic additions if few rows occur
(pytorch/pytorch#172454). So on a GPU the gradient is ours.

- The gradient of a table of a few rows is a matrix product with one-hot tokens. Products repeat, and a product that is
  given a float32 sum (``sum_products_in``) adds to it.
- Any other table gets ``table_gradient``: ids sorted, then the tokens of each row summed in float32, in their order.
"""

# T tokens, I inputs, O outputs, R rows of the table, E embedding width

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from megabert.ops.backend import choose
from megabert.ops.fp8 import Cast, cast_weight, fetch, row_product

FEW_ROWS = 16
"""Rows of a table up to which its gradient is a product, which reads the tokens' gradients once."""


AddProduct = Callable[[Tensor, Tensor], None]
"""Adds the product of two matrices to the sum of one weight's gradients, or begins with it."""


def sum_products_in(weight_OI: Tensor, gradient_sum: AddProduct) -> None:
    """Let ``dense`` add a weight's gradients to a sum from now on, instead of returning them to autograd."""
    weight_OI.gradient_sum = gradient_sum  # type: ignore[attr-defined]


def gradient_sum_of(weight: Tensor) -> AddProduct | None:
    """Return the sum that a weight's gradients are to be added to, None if autograd is to have them."""
    return getattr(weight, "gradient_sum", None) if weight.requires_grad else None


def dense(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None, *, in_fp8: bool = False) -> Tensor:
    """Return x W^T + bias, of shape (T, O).

    Args:
        x_TI: Inputs.
        weight_OI: Weight; a gradient may go to its sum, see ``sum_products_in``.
        bias_O: Bias; None adds none.
        in_fp8: Whether the output and the gradient of the input are products in 8 bits.
    """
    gradient_sum = gradient_sum_of(weight_OI)
    if gradient_sum is None and not in_fp8:
        return functional.linear(x_TI, weight_OI, bias_O)
    cast = fetch(x_TI.grad_fn) if in_fp8 and x_TI.output_nr == 0 else None
    return _Dense.apply(x_TI, weight_OI, bias_O, gradient_sum, in_fp8, cast)


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_TI: Tensor,
        weight_OI: Tensor,
        bias_O: Tensor | None,
        gradient_sum: AddProduct | None,
        in_fp8: bool,
        cast: Cast | None,
    ) -> Tensor:
        ctx.save_for_backward(x_TI, weight_OI)
        ctx.gradient_sum, ctx.takes_cast = gradient_sum, in_fp8
        if in_fp8:
            ctx.kept = getattr(weight_OI, "kept_casts", None)
            return row_product(x_TI, weight_OI, bias_O, left_cast=cast, right_cast=cast_weight(weight_OI, ctx.kept))
        return functional.linear(x_TI, weight_OI, bias_O)

    @staticmethod
    def backward(ctx: Any, grad_TO: Tensor) -> tuple[Tensor | None, ...]:
        x_TI, weight_OI = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        grad_OI = grad_TI = None
        if ctx.gradient_sum is not None:
            ctx.gradient_sum(grad_TO.t(), x_TI)
        elif needs_weight:
            grad_OI = grad_TO.t() @ x_TI
        cast = fetch(ctx, grad_TO)
        if needs_x and ctx.takes_cast:
            turned = cast_weight(weight_OI, ctx.kept, transposed=True)
            grad_TI = row_product(grad_TO, weight_OI.t(), left_cast=cast, right_cast=turned)
        elif needs_x:
            grad_TI = grad_TO @ weight_OI
        return grad_TI, grad_OI, grad_TO.sum(0) if needs_bias else None, None, None, None


def add_product_(total_OI: Tensor, left_OT: Tensor, right_TI: Tensor, *, is_first: bool) -> None:
    """Add a matrix product to ``total_OI`` in place, or overwrite it with the first one.

    16-bit factors of a float32 total are not rounded on a GPU, whose products take and write float32. On a CPU the
    product is a tensor in 16 bits, as autograd's would be.
    """
    if left_OT.dtype == total_OI.dtype:
        torch.mm(left_OT, right_TI, out=total_OI) if is_first else total_OI.addmm_(left_OT, right_TI)
    elif total_OI.device.type == "cuda":
        options: dict[str, Any] = {"out_dtype": total_OI.dtype, "out": total_OI}
        if is_first:
            torch.mm(left_OT, right_TI, **options)
        else:
            torch.addmm(total_OI, left_OT, right_TI, **options)
    else:
        product_OI = left_OT @ right_TI
        total_OI.copy_(product_OI) if is_first else total_OI.add_(product_OI)


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
    def forward(ctx: Any, ids_T: Tensor, table_RE: Tensor, gradient_sum: AddProduct | None) -> Tensor:
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
        ctx.gradient_sum(one_hot_RT, grad_TE)
        return None, None, None


def table_gradient(grad_TE: Tensor, ids_T: Tensor, rows: int, *, backend: str = "auto") -> Tensor:
    """Return, for each row of a table, the sum of the gradients of the tokens that took it, of shape (R, E).

    Sums are taken in float32 (float64 of float64) in the order of the tokens, on any device, and rounded once.

    Args:
        grad_TE: Gradients of the looked-up rows.
        ids_T: The row of each token, int64 or int32, each below ``rows``.
        rows: Rows of the table.
        backend: ``auto``, ``triton`` or ``torch``.
    """
    sorted_T, order_T = torch.sort(ids_T.long(), stable=True)
    first_R = torch.searchsorted(sorted_T, torch.arange(rows + 1, device=ids_T.device))
    run = choose("embedding", backend, grad_TE.device.type)
    return run(grad_TE, order_T, first_R)  # type: ignore[no-any-return]


def table_gradient_torch(grad_TE: Tensor, order_T: Tensor, first_R: Tensor) -> Tensor:
    """Return the sums of `table_gradient`, given the tokens sorted by their row and where each row's begin."""
    wide_TE = grad_TE if grad_TE.dtype == torch.float64 else grad_TE.float()
    sums_RE = torch.segment_reduce(wide_TE[order_T], "sum", offsets=first_R, axis=0, initial=0)
    return sums_RE.to(grad_TE.dtype)
