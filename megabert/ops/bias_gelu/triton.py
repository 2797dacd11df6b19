"""``bias_gelu`` as Triton kernels; only the input and the bias are kept for the backward pass.

With h = x + bias. erf form: y = h * Phi(h), dy/dh = Phi(h) + h * phi(h); Phi, phi: normal distribution and density.
tanh form: y = h * sigmoid(2u), u = sqrt(2/pi) (h + 0.044715 h^3), because (1 + tanh(u)) / 2 = sigmoid(2u), which needs
no subtraction; with s = sigmoid(2u), dy/dh = s + h s (1 - s) 2u'.

1 - Phi(|h|) = exp(-h^2 / 2) t series(t), t = 1 / (1 + p |h|), the form of Abramowitz & Stegun 7.1.26: polynomials
fitted to 3e-7 of the value at every h, and for 16-bit tensors to 1e-4. It shares the exponential with phi and has no
cancellation far below zero; CUDA's erf takes more instructions than memory leaves time for.
"""

# T packed tokens, F intermediate, P programs

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from megabert.ops.triton_support.column_sums import column_sums
from megabert.ops.triton_support.fast_math import exp2, reciprocal
from megabert.ops.triton_support.input_checks import require
from megabert.ops.triton_support.tile_sizes import BIAS_GELU_PROGRAMS, bias_gelu_tiles, multiprocessors_of, split_rows


@triton.jit
def _gate_and_density(h, APPROXIMATE: tl.constexpr, IS_SHORT: tl.constexpr):
    """Return what h is multiplied by and, in the erf form, exp(-h^2 / 2), which its derivative needs too."""
    if APPROXIMATE:
        # sigmoid(2u) = 1 / (1 + 2^(-2u * log2(e))); 2 * sqrt(2 / pi) * log2(e)
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
    tail = t * series * density
    return tl.where(h >= 0.0, 1.0 - tail, tail), density


@triton.jit
def bias_gelu_forward(x, bias, y, tokens, width, APPROXIMATE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Activate one tile."""
    tiles = tl.cdiv(width, COLUMNS)
    row = tl.program_id(0) // tiles * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) % tiles * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < tokens)[:, None] & (column < width)[None, :]
    place = row.to(tl.int64)[:, None] * width + column[None, :]
    b = tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)
    h = tl.load(x + place, mask=inside, other=0.0).to(tl.float32) + b[None, :]
    gate, _ = _gate_and_density(h, APPROXIMATE, x.dtype.element_ty.primitive_bitwidth == 16)
    tl.store(y + place, (h * gate).to(y.dtype.element_ty), mask=inside)


@triton.jit
def bias_gelu_backward(
    dy,
    x,
    bias,
    dx,
    partials,
    tokens,
    width,
    rows_each,
    APPROXIMATE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Differentiate ``rows_each`` tokens of COLUMNS columns; ``partials`` is float32 of shape (1, programs, F)."""
    program = tl.program_id(1)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    b = tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    dbias = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for first in range(0, rows_each, ROWS):
        row = program * rows_each + first + tl.arange(0, ROWS)
        inside = (row < tokens)[:, None] & (column < width)[None, :]
        place = row.to(tl.int64)[:, None] * width + column[None, :]
        h = tl.load(x + place, mask=inside, other=0.0).to(tl.float32) + b
        grad = tl.load(dy + place, mask=inside, other=0.0).to(tl.float32)
        gate, density = _gate_and_density(h, APPROXIMATE, x.dtype.element_ty.primitive_bitwidth == 16)
        if APPROXIMATE:
            slope = 1.5957691216057308 * (1.0 + 0.134145 * h * h)  # 3 * 0.044715
            dh = grad * (gate + h * gate * (1.0 - gate) * slope)
        else:
            dh = grad * (gate + h * density * 0.3989422804014327)  # 1 / sqrt(2 pi)
        dbias += dh
        tl.store(dx + place, dh.to(dx.dtype.element_ty), mask=inside)
    tl.store(partials + program * width + column, tl.sum(dbias, axis=0), mask=column < width)


def bias_gelu_triton(x_TF: Tensor, bias_F: Tensor, *, approximate: bool) -> Tensor:
    """Run ``api.bias_gelu`` on a CUDA device; everything between loads and stores is float32."""
    require("bias_gelu", x_TF, bias_F)
    y_TF: Tensor = _BiasGelu.apply(x_TF, bias_F, approximate)
    return y_TF


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
            # one dimension: a grid's others end at 65,535
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
        return dx_TF, column_sums(partials_1PF)[0].to(bias_F.dtype), None
