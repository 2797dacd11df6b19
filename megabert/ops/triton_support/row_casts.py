"""Rows in 8 bits with a scale each, in one pass over memory, where torch takes several: ``ops.fp8.cast_rows``.

``row_cast`` casts any rows. A kernel that has whole rows at hand calls ``store_row_cast`` instead, with the 16 bits
that it stores: so casts are the same wherever they are made.
"""

# R rows, K numbers of a row

import torch
import triton
import triton.language as tl
from torch import Tensor

from megabert.ops import fp8
from megabert.ops.triton_support.tile_sizes import row_cast_tiles

# of float32
TINY, MANTISSA, MANTISSA_BITS, TWICE_BIAS = map(tl.constexpr, (torch.finfo(torch.float32).tiny, fp8.MANTISSA, 23, 254))
LIMIT = tl.constexpr(torch.finfo(fp8.TYPE).max)
"""The largest number of the 8-bit type of activations and gradients."""


@triton.jit
def row_scales(largest):
    """Return the scale of each row, whose largest absolute value is given in float32, and 1 / scale: powers of two."""
    quotient = tl.maximum(tl.div_rn(largest, tl.full(largest.shape, LIMIT, tl.float32)), TINY)
    exponent = (quotient.to(tl.int32, bitcast=True) + MANTISSA) >> MANTISSA_BITS
    # One divided by a power of two has the negative exponent: stored ones add up to twice the bias. One divided by
    # infinity is 0, which makes infinity NaN.
    inverse = (tl.maximum(TWICE_BIAS - exponent, 0) << MANTISSA_BITS).to(tl.float32, bitcast=True)
    return (exponent << MANTISSA_BITS).to(tl.float32, bitcast=True), inverse


@triton.jit
def store_row_cast(
    x,  # whole rows in float32, 0 in columns that do not exist, (ROWS, COLUMNS)
    values_ptr,  # result in 8 bits, (at least rows, width)
    scales_ptr,  # powers of two, float32, (at least rows,)
    row,  # row numbers, (ROWS,)
    rows,  # R
    offsets,  # where the tile's elements are, (ROWS, COLUMNS)
    mask,  # which elements exist, (ROWS, COLUMNS)
):
    """Write the rows of a tile in 8 bits, and their scales."""
    scales, inverse = row_scales(tl.max(tl.abs(x), axis=1))
    tl.store(scales_ptr + row, scales, mask=row < rows)
    tl.store(values_ptr + offsets, (x * inverse[:, None]).to(values_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["rows"])
def row_cast(
    rows_ptr,  # numbers, (rows, width)
    values_ptr,  # result in 8 bits, (at least rows, width)
    scales_ptr,  # powers of two, float32, (at least rows,)
    rows,  # R
    width,  # K
    ROWS: tl.constexpr,  # rows of a program
    COLUMNS: tl.constexpr,  # power of two that is at least K
):
    """Cast ROWS rows."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    mask = (row < rows)[:, None] & (columns < width)[None, :]
    offsets = row.to(tl.int64)[:, None] * width + columns[None, :]
    x = tl.load(rows_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    store_row_cast(x, values_ptr, scales_ptr, row, rows, offsets, mask)


def room_for_cast(rows_RK: Tensor) -> fp8.Cast:
    """Return memory for the cast of rows, with rows of any content up to the multiple that products ask for."""
    room = -(-len(rows_RK) // fp8.MULTIPLE) * fp8.MULTIPLE
    device = rows_RK.device
    return torch.empty(room, rows_RK.shape[1], dtype=fp8.TYPE, device=device), torch.empty(room, 1, device=device)


def cast_rows_triton(rows_RK: Tensor) -> fp8.Cast:
    """Return rows in an 8-bit type and their scales, as ``fp8.cast_rows``, in `room_for_cast`."""
    rows_RK = rows_RK.contiguous()
    cast = room_for_cast(rows_RK)
    rows, width = rows_RK.shape
    tiles = row_cast_tiles(width)
    if rows:
        grid = (triton.cdiv(rows, tiles.rows),)
        row_cast[grid](rows_RK, *cast, rows, width, **tiles.options)
    return cast
