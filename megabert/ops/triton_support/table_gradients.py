"""The gradient of a table of embeddings: the gradients of the tokens that took a row, summed in one order.

A program owns some columns of one row and reads the row's tokens in the order in which they are packed, so sums repeat
bit for bit, and a frequent word loses nothing to additions in 16 bits.
"""

# T packed tokens, R rows of the table, E embedding width

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS = 32, 128
"""A tile: 4,096 tokens of one word are 128 loads one after the other."""


@triton.jit
def embedding_gradient(
    grad_ptr,  # gradients of the looked-up rows, (tokens, width)
    order_ptr,  # tokens sorted by their row, int64, (tokens,)
    first_ptr,  # where the tokens of each row begin in the order, int64, (rows + 1,)
    out_ptr,  # result, (rows, width)
    width,  # E
    ROWS: tl.constexpr,  # tokens read at once
    COLUMNS: tl.constexpr,  # columns of a program
):
    """Write COLUMNS columns of one row's gradient, summed in float32; 0 for a row that no token took."""
    blocks = tl.cdiv(width, COLUMNS)
    row = tl.program_id(0) // blocks
    cols = tl.program_id(0) % blocks * COLUMNS + tl.arange(0, COLUMNS)
    begin, end = tl.load(first_ptr + row), tl.load(first_ptr + row + 1)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for first in range(begin, end, ROWS):
        place = first + tl.arange(0, ROWS)
        token = tl.load(order_ptr + place, mask=place < end, other=0)
        mask = (place < end)[:, None] & (cols < width)[None, :]
        total += tl.load(grad_ptr + token[:, None] * width + cols[None, :], mask=mask, other=0.0).to(tl.float32)
    sums = tl.sum(total, axis=0).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row.to(tl.int64) * width + cols, sums, mask=cols < width)


def table_gradient_triton(grad_TE: Tensor, order_T: Tensor, first_R: Tensor) -> Tensor:
    """Run ``embedding.table_gradient`` on a CUDA device.

    Args:
        grad_TE: Gradients of the looked-up rows.
        order_T: Tokens sorted by their row, int64.
        first_R: Where the tokens of each row begin in the order, int64 of shape (R + 1,); the last is T.

    Returns:
        The sums of shape (R, E), in the dtype of ``grad_TE``.
    """
    rows, width = len(first_R) - 1, grad_TE.shape[1]
    out_RE = torch.empty(rows, width, dtype=grad_TE.dtype, device=grad_TE.device)
    grid = (rows * triton.cdiv(width, COLUMNS),)
    embedding_gradient[grid](
        grad_TE.contiguous(), order_T, first_R, out_RE, width, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=4
    )
    return out_RE
