"""``gated_gelu`` as Triton kernels; only the input is kept for the backward pass.

With y = g(a) * b, a and b the halves of a row and g GELU: da = dy * b * g'(a), db = dy * g(a). Forward reads 2 numbers
for each that it writes, backward reads 3 and writes 2.
"""

# T packed tokens, F intermediate, C = 2 * F

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from megabert.ops import fp8
from megabert.ops.triton_support.device_functions import row_tile
from megabert.ops.triton_support.gelu_functions import gelu_derivative, gelu_gate_and_density
from megabert.ops.triton_support.input_checks import require
from megabert.ops.triton_support.row_casts import room_for_cast, row_scales, store_row_cast
from megabert.ops.triton_support.tile_sizes import bias_gelu_tiles


@triton.jit(do_not_specialize=["tokens"])
def gated_gelu_forward(
    x_ptr,  # both projections, (tokens, 2 * width)
    values_ptr,  # result in 8 bits, or None if it is not cast; else a tile has whole rows
    scales_ptr,  # the scale of each row of it, or None
    y_ptr,  # result, (tokens, width)
    tokens,  # rows
    width,  # columns of a row of the result
    APPROXIMATE: tl.constexpr,  # tanh form instead of erf form
    ROWS: tl.constexpr,  # rows of a tile
    COLUMNS: tl.constexpr,  # columns of a tile
):
    """Compute one tile of the result; tiles are numbered row by row."""
    row, cols, mask, outputs = row_tile(tokens, width, ROWS, COLUMNS)
    inputs = 2 * row.to(tl.int64)[:, None] * width + cols[None, :]
    a = tl.load(x_ptr + inputs, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(x_ptr + inputs + width, mask=mask, other=0.0).to(tl.float32)
    gate, _ = gelu_gate_and_density(a, APPROXIMATE, x_ptr.dtype.element_ty.primitive_bitwidth == 16)
    y = (a * gate * b).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + outputs, y, mask=mask)
    if values_ptr is not None:
        store_row_cast(y.to(tl.float32), values_ptr, scales_ptr, row, tokens, outputs, mask)


@triton.jit(do_not_specialize=["tokens"])
def gated_gelu_backward(
    x_ptr,  # both projections, (tokens, 2 * width)
    dx_ptr,  # their gradients, (tokens, 2 * width)
    values_ptr,  # the same in 8 bits, or None if they are not cast; else a tile has whole rows
    scales_ptr,  # the scale of each row of them, or None
    dy_ptr,  # gradient of the result, (tokens, width)
    tokens,  # rows
    width,  # columns of a row of the result
    APPROXIMATE: tl.constexpr,  # tanh form instead of erf form
    ROWS: tl.constexpr,  # rows of a tile
    COLUMNS: tl.constexpr,  # columns of a tile
):
    """Differentiate one tile of the result."""
    row, cols, mask, outputs = row_tile(tokens, width, ROWS, COLUMNS)
    inputs = 2 * row.to(tl.int64)[:, None] * width + cols[None, :]
    a = tl.load(x_ptr + inputs, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(x_ptr + inputs + width, mask=mask, other=0.0).to(tl.float32)
    grad = tl.load(dy_ptr + outputs, mask=mask, other=0.0).to(tl.float32)
    gate, density = gelu_gate_and_density(a, APPROXIMATE, x_ptr.dtype.element_ty.primitive_bitwidth == 16)
    da = (grad * b * gelu_derivative(a, gate, density, APPROXIMATE)).to(dx_ptr.dtype.element_ty)
    db = (grad * a * gate).to(dx_ptr.dtype.element_ty)
    tl.store(dx_ptr + inputs, da, mask=mask)
    tl.store(dx_ptr + inputs + width, db, mask=mask)
    if values_ptr is not None:
        first, second = da.to(tl.float32), db.to(tl.float32)
        largest = tl.max(tl.maximum(tl.abs(first), tl.abs(second)), axis=1)
        scales, inverse = row_scales(largest)
        tl.store(scales_ptr + row, scales, mask=row < tokens)
        tl.store(values_ptr + inputs, (first * inverse[:, None]).to(values_ptr.dtype.element_ty), mask=mask)
        tl.store(values_ptr + inputs + width, (second * inverse[:, None]).to(values_ptr.dtype.element_ty), mask=mask)


def gated_gelu_triton(x_TC: Tensor, *, approximate: bool) -> Tensor:
    """Run ``api.gated_gelu`` on a CUDA device; everything between loads and stores is float32."""
    require("bias_gelu", x_TC)
    return _GatedGelu.apply(x_TC, approximate)


class _GatedGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TC: Tensor, approximate: bool) -> Tensor:
        product = fp8.product_before(x_TC)
        x_TC = x_TC.contiguous()
        ctx.save_for_backward(x_TC)
        ctx.approximate, ctx.product = approximate, product
        y_TF = x_TC.new_empty(x_TC.shape[0], x_TC.shape[1] // 2)
        cast = room_for_cast(y_TF) if product else None
        tiles = bias_gelu_tiles(y_TF.shape[1], has_cast=bool(cast))
        tiles.launch_over(gated_gelu_forward, (x_TC, *(cast or (None, None)), y_TF), APPROXIMATE=approximate)
        if cast:
            fp8.leave(ctx, cast)
        return y_TF

    @staticmethod
    def backward(ctx: Any, grad_TF: Tensor) -> tuple[Tensor, None]:
        (x_TC,) = ctx.saved_tensors
        dx_TC = torch.empty_like(x_TC)
        cast = room_for_cast(dx_TC) if ctx.product else None
        tensors = (x_TC, dx_TC, *(cast or (None, None)), grad_TF.contiguous())
        tiles = bias_gelu_tiles(grad_TF.shape[1], has_cast=bool(cast))
        tiles.launch_over(gated_gelu_backward, tensors, APPROXIMATE=ctx.approximate)
        if cast:
            fp8.leave(ctx.product, cast, dx_TC)
        return dx_TC, None
