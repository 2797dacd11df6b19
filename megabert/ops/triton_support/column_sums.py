"""Second stage of sums over tokens: programs' partial sums added in a fixed order (no atomics: results repeat)."""

# Q quantities, P programs, D columns

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS = 32, 32


@triton.jit
def column_sums_of_partials(partials, sums, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Sum ``partials`` of shape (Q, rows, columns) over rows into ``sums`` of shape (Q, columns)."""
    quantity = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.arange(0, ROWS)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for first in range(0, rows, ROWS):
        inside = (first + row < rows)[:, None] & (column < columns)[None, :]
        place = (quantity * rows + first + row)[:, None] * columns + column[None, :]
        total += tl.load(partials + place, mask=inside, other=0.0)
    tl.store(sums + quantity * columns + column, tl.sum(total, axis=0), mask=column < columns)


def column_sums(partials_QPD: Tensor) -> Tensor:
    """Return float32 sums over P, of shape (Q, D)."""
    quantities, rows, columns = partials_QPD.shape
    sums_QD = torch.empty(quantities, columns, dtype=torch.float32, device=partials_QPD.device)
    grid = (triton.cdiv(columns, COLUMNS), quantities)
    column_sums_of_partials[grid](partials_QPD, sums_QD, rows, columns, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=4)
    return sums_QD
