"""``bias_gelu`` as Triton kernels; only the input and the bias are kept for the backward pass.

With h = x + bias, the result is h times a gate between 0 and 1:

    erf form:  y = h * Phi(h), dy/dh = Phi(h) + h * phi(h), Phi and phi the normal distribution and its density
    tanh form: y = h * s, s = sigmoid(2u), u = sqrt(2/pi) (h + 0.044715 h^3), dy/dh = s + h s (1 - s) 2u'

The tanh form is usually written with (1 + tanh(u)) / 2, which is sigmoid(2u); that needs no subtraction.

Phi is computed from its tail, 1 - Phi(|h|) = exp(-h^2 / 2) t series(t) with t = 1 / (1 + p |h|), the form of
Abramowitz & Stegun 7.1.26. The polynomials were fitted to a relative error of 3e-7 at every h, for 16-bit tensors to
1e-4. The tail shares its exponential with phi and has no cancellation far below zero; CUDA's erf takes more
instructions than memory leaves time for.
"""

# T packed tokens, F intermediate, P programs

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from megabert.ops.triton_support.column_sums import column_sums
from megabert.ops.triton_support.device_functions import exp2, reciprocal
from megabert.ops.triton_support.input_checks import require
from megabert.ops.triton_support.tile_sizes import BIAS_GELU_PROGRAMS, bias_gelu_tiles, multiprocessors_of, split_rows


@triton.jit
def _gate_and_density(
    h,  # x + bias, float32
    APPROXIMATE: tl.constexpr,  # tanh form instead of erf form
    IS_SHORT: tl.constexpr,  # whether the tensors are 16-bit, for which a shorter series is exact enough
):
    """Return what h is multiplied by and, in the erf form, exp(-h^2 / 2), which its derivative needs as well."""
    if APPROXIMATE:
        # sigmoid(2u) = 1 / (1 + 2^(-2u * log2(e))), and 2 * sqrt(2 / pi) * log2(e) = 2.302208198
        return reciprocal(1.0 + exp2(-2.302208198 * h * (1.0 + 0.044715 * h * h))), h
    density = exp2(-0.7213475204444817 * h * h)  # log2(e) / 2
    if IS_SHORT:
        t = reciprocal(1.0 + 0.4 * tl.abs(h))
        series = 0.120579638 + t * (0.14404988 + t * -0.0847606321)
        series = 0.159572779 + t * (0.160510799 + t * series)
    else:
        t = reciprocal(1.0 + 0.28 * tl.abs(h))
        series = -0.0936265765 + t * 0.0247285984
        series = 0.072794825 + t * (-0.0064924782 + t * (0.0924808154 + t * series))
        series = 0.111703858 + t * (0.111699768 + t * (0.103085303 + t * (0.0836258022 + t * series)))
    # The tail is Phi(h) for a negative h, and 1 - Phi(h) for a positive one.
    tail = t * series * density
    return tl.where(h >= 0.0, 1.0 - tail, tail), density


@triton.jit(do_not_specialize=["tokens"])
def bias_gelu_forward(
    x_ptr,  # output of the dense layer, (tokens, width)
    bias_ptr,  # its bias, (width,)
    y_ptr,  # result, (tokens, width)
    tokens,  # rows
    width,  # columns of a row
    APPROXIMATE: tl.constexpr,  # tanh form instead of erf form
    ROWS: tl.constexpr,  # rows of a tile
    COLUMNS: tl.constexpr,  # columns of a tile
):
    """Activate one tile; tiles are numbered row by row."""
    tiles = tl.cdiv(width, COLUMNS)
    row = tl.program_id(0) // tiles * ROWS + tl.arange(0, ROWS)
    cols = tl.program_id(0) % tiles * COLUMNS + tl.arange(0, COLUMNS)
    mask = (row < tokens)[:, None] & (cols < width)[None, :]
    offsets = row.to(tl.int64)[:, None] * width + cols[None, :]
    b = tl.load(bias_ptr + cols, mask=cols < width, other=0.0).to(tl.float32)
    h = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32) + b[None, :]
    gate, _ = _gate_and_density(h, APPROXIMATE, x_ptr.dtype.element_ty.primitive_bitwidth == 16)
    tl.store(y_ptr + offsets, (h * gate).to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["tokens", "rows_each"])
def bias_gelu_backward(
    dy_ptr,  # gradient of the result, (tokens, width)
    x_ptr,  # output of the dense layer, (tokens, width)
    bias_ptr,  # its bias, (width,)
    dx_ptr,  # gradient of x, (tokens, width)
    partials_ptr,  # each program's sum of dx over its rows, float32, (1, programs, width)
    tokens,  # rows
    width,  # columns of a row
    rows_each,  # rows of a program, a multiple of ROWS
    APPROXIMATE: tl.constexpr,  # tanh form instead of erf form
    ROWS: tl.constexpr,  # rows worked on at once
    COLUMNS: tl.constexpr,  # columns of a program
):
    """Differentiate ``rows_each`` rows of COLUMNS columns, and add up what they contribute to the bias's gradient."""
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
        gate, density = _gate_and_density(h, APPROXIMATE, x_ptr.dtype.element_ty.primitive_bitwidth == 16)
        if APPROXIMATE:
            slope = 1.5957691216057308 * (1.0 + 0.134145 * h * h)  # 2u'; 2 * sqrt(2 / pi) and 3 * 0.044715
            dh = grad * (gate + h * gate * (1.0 - gate) * slope)
        else:
            dh = grad * (gate + h * density * 0.3989422804014327)  # 1 / sqrt(2 pi)
        # Rows past the end add nothing: their gradient was loaded as zero.
        dbias += dh
        tl.store(dx_ptr + offsets, dh.to(dx_ptr.dtype.element_ty), mask=mask)
    tl.store(partials_ptr + program * width + cols, tl.sum(dbias, axis=0), mask=cols < width)


def bias_gelu_triton(x_TF: Tensor, bias_F: Tensor, *, approximate: bool) -> Tensor:
    """Run ``api.bias_gelu`` on a CUDA device; everything between loads and stores is float32."""
    require("bias_gelu", x_TF, bias_F)
    return _BiasGelu.apply(x_TF, bias_F, approximate)


class _BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TF: Tensor, bias_F: Tensor, approximate: bool) -> Tensor:
        x_TF = x_TF.contiguous()
        ctx.save_for_backward(x_TF, bias_F)
        ctx.approximate = approximate
        tokens, width = x_TF.shape
        tiles = bias_gelu_tiles(width)
        y_TF = torch.empty_like(x_TF)
        if tokens:
            # One dimension of programs: the others end at 65,535.
            bias_gelu_forward[(triton.cdiv(width, tiles.columns) * triton.cdiv(tokens, tiles.rows),)](
                x_TF,
                bias_F,
                y_TF,
                tokens,
                width,
                APPROXIMATE=approximate,
                ROWS=tiles.rows,
                COLUMNS=tiles.columns,
                num_warps=tiles.warps,
            )
        return y_TF

    @staticmethod
    def backward(ctx: Any, grad_TF: Tensor) -> tuple[Tensor, Tensor, None]:
        x_TF, bias_F = ctx.saved_tensors
        tokens, width = x_TF.shape
        tiles = bias_gelu_tiles(width)
        dx_TF = torch.empty_like(x_TF)
        columns = triton.cdiv(width, tiles.columns)
        most = max(1, BIAS_GELU_PROGRAMS * multiprocessors_of(x_TF.device) // columns)
        programs, rows_each = split_rows(tokens, tiles.rows, most)
        partials_1PF = torch.empty(1, programs, width, dtype=torch.float32, device=x_TF.device)
        if programs:
            bias_gelu_backward[(columns, programs)](
                grad_TF.contiguous(),
                x_TF,
                bias_F,
                dx_TF,
                partials_1PF,
                tokens,
                width,
                rows_each,
                APPROXIMATE=ctx.approximate,
                ROWS=tiles.rows,
                COLUMNS=tiles.columns,
                num_warps=tiles.warps,
            )
        return dx_TF, column_sums(partials_1PF, bias_F.dtype)[0], None
