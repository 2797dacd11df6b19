"""``bias_gelu`` as Triton kernels; only the input and the bias are kept for the backward pass."""

# T packed tokens, F intermediate, P programs

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from megabert.ops import fp8
from megabert.ops.triton_support import tile_sizes
from megabert.ops.triton_support.column_sums import column_sums
from megabert.ops.triton_support.device_functions import row_tile
from megabert.ops.triton_support.gelu_functions import gelu_derivative, gelu_gate_and_density
from megabert.ops.triton_support.input_checks import require
from megabert.ops.triton_support.row_casts import room_for_cast, store_row_cast


@triton.jit(do_not_specialize=["tokens"])
def bias_gelu_forward(
    x_ptr,  # output of the dense layer, (tokens, width)
    bias_ptr,  # its bias, (width,)
    values_ptr,  # result in 8 bits, or None if it is not cast; else a tile has whole rows
    scales_ptr,  # the scale of each row of it, or None
    y_ptr,  # result, (tokens, width)
    tokens,  # rows
    width,  # columns of a row
    APPROXIMATE: tl.constexpr,  # tanh form instead of erf form
    ROWS: tl.constexpr,  # rows of a tile
    COLUMNS: tl.constexpr,  # columns of a tile
):
    """Activate one tile; tiles are numbered row by row."""
    row, cols, mask, offsets = row_tile(tokens, width, ROWS, COLUMNS)
    b = tl.load(bias_ptr + cols, mask=cols < width, other=0.0).to(tl.float32)
    h = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32) + b[None, :]
    gate, _ = gelu_gate_and_density(h, APPROXIMATE, x_ptr.dtype.element_ty.primitive_bitwidth == 16)
    y = (h * gate).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + offsets, y, mask=mask)
    if values_ptr is not None:
        store_row_cast(y.to(tl.float32), values_ptr, scales_ptr, row, tokens, offsets, mask)


@triton.jit(do_not_specialize=["tokens", "rows_each"])
def bias_gelu_backward(
    dy_ptr,  # gradient of the result, (tokens, width)
    x_ptr,  # output of the dense layer, (tokens, width)
    bias_ptr,  # its bias, (width,)
    dx_ptr,  # gradient of x, (tokens, width)
    values_ptr,  # the same in 8 bits, or None if it is not cast; else a program has whole rows
    scales_ptr,  # the scale of each row of it, or None
    partials_ptr,  # each program's sum of dx over its rows, float32, (1, programs, width)
    tokens,  # rows
    width,  # columns of a row
    rows_each,  # rows of a program, a multiple of ROWS
    APPROXIMATE: tl.constexpr,  # tanh form instead of erf form
    ROWS: tl.constexpr,  # rows worked on at once
    COLUMNS: tl.constexpr,  # columns of a program
):
    """Differentiate ``rows_each`` rows of COLUMNS columns, and add up their part of the bias's gradient."""
    program = tl.program_id(1)
    cols = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    b = tl.load(bias_ptr + cols, mask=cols < width, other=0.0).to(tl.float32)[None, :]
    dbias = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for first in range(0, rows_each, ROWS):
        row = program * rows_each + first + tl.arange(0, ROWS)
        mask = (row < tokens)[:, None] & (cols < width)[None, :]
        offsets = row.to(tl.int64)[:, None] * width + cols[None, :]
        h = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32) + b
        grad = tl.load(dy_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        gate, density = gelu_gate_and_density(h, APPROXIMATE, x_ptr.dtype.element_ty.primitive_bitwidth == 16)
        dh = grad * gelu_derivative(h, gate, density, APPROXIMATE)
        # Rows past the end add nothing: their gradient was loaded as zero.
        dbias += dh
        dx = dh.to(dx_ptr.dtype.element_ty)
        tl.store(dx_ptr + offsets, dx, mask=mask)
        if values_ptr is not None:
            store_row_cast(dx.to(tl.float32), values_ptr, scales_ptr, row, tokens, offsets, mask)
    tl.store(partials_ptr + program * width + cols, tl.sum(dbias, axis=0), mask=cols < width)


def bias_gelu_triton(x_TF: Tensor, bias_F: Tensor, *, approximate: bool) -> Tensor:
    """Run ``api.bias_gelu`` on a CUDA device; everything between loads and stores is float32."""
    require("bias_gelu", x_TF, bias_F)
    return _BiasGelu.apply(x_TF, bias_F, approximate)


class _BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TF: Tensor, bias_F: Tensor, approximate: bool) -> Tensor:
        product = fp8.product_before(x_TF)
        x_TF = x_TF.contiguous()
        ctx.save_for_backward(x_TF, bias_F)
        ctx.approximate, ctx.product = approximate, product
        y_TF = torch.empty_like(x_TF)
        cast = room_for_cast(y_TF) if product else None
        tensors = (x_TF, bias_F, *(cast or (None, None)), y_TF)
        tiles = tile_sizes.bias_gelu_tiles(x_TF.shape[1], has_cast=bool(cast))
        tiles.launch_over(bias_gelu_forward, tensors, APPROXIMATE=approximate)
        if cast:
            fp8.leave(ctx, cast)
        return y_TF

    @staticmethod
    def backward(ctx: Any, grad_TF: Tensor) -> tuple[Tensor, Tensor, None]:
        x_TF, bias_F = ctx.saved_tensors
        tokens, width = x_TF.shape
        dx_TF = torch.empty_like(x_TF)
        cast = room_for_cast(dx_TF) if ctx.product else None
        tiles = tile_sizes.bias_gelu_tiles(width, has_cast=bool(cast))
        columns = triton.cdiv(width, tiles.columns)
        on_each = tile_sizes.BIAS_GELU_ROW_PROGRAMS if cast else tile_sizes.BIAS_GELU_PROGRAMS
        most = max(1, on_each * tile_sizes.multiprocessors_of(x_TF.device) // columns)
        programs, rows_each = tile_sizes.split_rows(tokens, tiles.rows, most)
        partials_1PF = torch.empty(1, programs, width, dtype=torch.float32, device=x_TF.device)
        if programs:
            tensors = (grad_TF.contiguous(), x_TF, bias_F, dx_TF, *(cast or (None, None)), partials_1PF)
            constants = {"APPROXIMATE": ctx.approximate, **tiles.options}
            bias_gelu_backward[(columns, programs)](*tensors, tokens, width, rows_each, **constants)
        if cast:
            fp8.leave(ctx.product, cast, dx_TF)
        return dx_TF, column_sums(partials_1PF, bias_F.dtype)[0], None
