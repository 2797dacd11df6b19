"""Rows in 8 bits with a scale each, in one pass over memory, where torch takes several: ``ops.fp8.cast_rows``."""

# R rows, K numbers of a row

import torch
import triton
import triton.language as tl
from torch import Tensor

from megabert.ops import fp8
from megabert.ops.triton_support.tile_sizes import row_cast_tiles

# of float32
TINY, MANTISSA, MANTISSA_BITS, TWICE_BIAS = map(tl.constexpr, (torch.finfo(torch.float32).tiny, fp8.MANTISSA, 23, 254))


@triton.jit(do_not_specialize=["rows", "room"])
def row_cast(
    rows_ptr,  # numbers, (rows, width)
    values_ptr,  # result in 8 bits, (room, width); the rows that are not there are 0
    scales_ptr,  # powers of two, float32, (room,)
    rows,  # R
    room,  # R rounded up to a multiple of the rows of a product
    width,  # K
    LIMIT: tl.constexpr,  # largest number of the 8-bit type
    ROWS: tl.constexpr,  # rows of a program
    COLUMNS: tl.constexpr,  # power of two that is at least K
):
    """Write ROWS rows."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    is_column = (columns < width)[None, :]
    offsets = row.to(tl.int64)[:, None] * width + columns[None, :]
    x = tl.load(rows_ptr + offsets, mask=is_column & (row < rows)[:, None], other=0.0).to(tl.float32)
    quotient = tl.maximum(tl.div_rn(tl.max(tl.abs(x), axis=1), tl.full((ROWS,), LIMIT, tl.float32)), TINY)
    exponent = (quotient.to(tl.int32, bitcast=True) + MANTISSA) >> MANTISSA_BITS
    # One divided by a power of two has the negative exponent: stored ones add up to twice the bias. One divided by
    # infinity is 0, which makes infinity NaN.
    inverse = (tl.maximum(TWICE_BIAS - exponent, 0) << MANTISSA_BITS).to(tl.float32, bitcast=True)
    tl.store(scales_ptr + row, (exponent << MANTISSA_BITS).to(tl.float32, bitcast=True), mask=row < room)
    values = (x * inverse[:, None]).to(values_ptr.dtype.element_ty)
    tl.store(values_ptr + offsets, values, mask=is_column & (row < room)[:, None])


def cast_rows_triton(rows_RK: Tensor, dtype: torch.dtype, multiple: int = 1) -> tuple[Tensor, Tensor]:
    """Return rows in an 8-bit type and their scales, as ``fp8.cast_rows``; zeros follow up to a multiple of rows."""
    rows_RK = rows_RK.contiguous()
    rows, width = rows_RK.shape
    room = -(-rows // multiple) * multiple
    values_RK = torch.empty(room, width, dtype=dtype, device=rows_RK.device)
    scales_R1 = torch.empty(room, 1, device=rows_RK.device)
    tiles = row_cast_tiles(width)
    if room:
        row_cast[(triton.cdiv(room, tiles.rows),)](
            *(rows_RK, values_RK, scales_R1, rows, room, width), LIMIT=torch.finfo(dtype).max, **tiles.options
        )
    return values_RK, scales_R1
