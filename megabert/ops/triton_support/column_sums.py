"""The second half of sums over tokens: adds up the sums of each program of an earlier kernel.

Programs are added in a fixed order. Atomic sums would need no second kernel, but differ from run to run.
"""

# Q quantities, P programs, D columns

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS = 128, 32
"""A tile: 528 programs are five loads one after the other, each as long as memory takes to answer."""


@triton.jit(do_not_specialize=["rows"])
def column_sums_of_partials(
    partials_ptr,  # partial sums, float32, (quantities, rows, columns)
    sums_ptr,  # result, (quantities, columns)
    rows,  # programs that made partial sums
    columns,  # columns of a row
    ROWS: tl.constexpr,  # rows added at once
    COLUMNS: tl.constexpr,  # columns of a program
):
    """Sum COLUMNS columns of one quantity over rows."""
    quantity = tl.program_id(1).to(tl.int64)
    cols = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.arange(0, ROWS)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for first in range(0, rows, ROWS):
        mask = (first + row < rows)[:, None] & (cols < columns)[None, :]
        offsets = (quantity * rows + first + row)[:, None] * columns + cols[None, :]
        total += tl.load(partials_ptr + offsets, mask=mask, other=0.0)
    sums = tl.sum(total, axis=0).to(sums_ptr.dtype.element_ty)
    tl.store(sums_ptr + quantity * columns + cols, sums, mask=cols < columns)


def column_sums(partials_QPD: Tensor, dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
    """Return the sums over programs, taken in float32, rounded to ``dtype``, of shape (Q, D).

    Args:
        partials_QPD: Partial sums, float32.
        dtype: Of the result.
        out: Contiguous memory for it; None allocates some.
    """
    quantities, rows, columns = partials_QPD.shape
    sums_QD = torch.empty(quantities, columns, dtype=dtype, device=partials_QPD.device) if out is None else out
    grid = (triton.cdiv(columns, COLUMNS), quantities)
    column_sums_of_partials[grid](partials_QPD, sums_QD, rows, columns, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=4)
    return sums_QD
